//! The walk over the data of files on the MDT: it must belong to a file with a part on the MDT, and
//! its attributes must match its blocks.

use osd::{ObjAttr, OsdError, check::Progress, check::for_each_entry};
use wire::Fid;

use super::{Examination, Problem};
use crate::store::{
    Store,
    data::{DataSum, decode_attr},
    keys,
};

/// The data of one file, as the walk finds it.
struct Found {
    fid: Fid,
    /// The attributes; the error is the reason that there are none.
    attr: Result<ObjAttr, String>,
    /// The sum of the blocks.
    sum: DataSum,
}

impl Found {
    fn new(fid: Fid) -> Found {
        Found {
            fid,
            attr: Err("no attributes".into()),
            sum: DataSum::default(),
        }
    }

    /// The reason that the attributes do not match the blocks, if they do not.
    fn mismatch(&self) -> Option<String> {
        match &self.attr {
            Err(reason) => Some(reason.clone()),
            Ok(attr) if self.sum.matches(attr) => None,
            Ok(attr) => Some(format!(
                "size {} and {} blocks, but data up to byte {} in {} blocks",
                attr.size, attr.blocks, self.sum.end, self.sum.blocks
            )),
        }
    }
}

/// Walks the data of files.
pub(super) async fn walk(
    store: &Store,
    progress: &Progress,
    examination: &mut Examination,
) -> Result<(), OsdError> {
    let mut all: Vec<Fid> = Vec::new();
    let mut current: Option<Found> = None;
    let mut problems = Vec::new();
    let mut end = |found: Option<Found>| {
        let Some(found) = found else { return };
        all.push(found.fid);
        if let Some(reason) = found.mismatch() {
            let fid = found.fid;
            problems.push(Problem::WrongData { fid, reason });
        }
    };
    for_each_entry(&**store.index(), keys::DATA, progress, |key, value| {
        let Some(fid) = keys::fid(&key) else {
            examination.problems.push(Problem::BadRecord {
                key,
                record: "data on the MDT",
                reason: "the key is not a FID".into(),
            });
            return Ok(());
        };
        if current.as_ref().is_none_or(|found| found.fid != fid) {
            end(current.replace(Found::new(fid)));
        }
        let Some(found) = &mut current else {
            return Ok(());
        };
        match keys::block(&key) {
            Some(number) => found.sum.add(number, &value),
            None => found.attr = decode_attr(&value).map_err(|e| e.to_string()),
        }
        Ok::<(), OsdError>(())
    })
    .await?;
    end(current.take());
    for fid in all {
        // Fails if the caller has stopped the check.
        progress.add(0)?;
        let inode = store.find(fid).await;
        let is_unused = inode.is_ok_and(|inode| inode.is_none_or(|inode| inode.data_max().is_none()));
        if is_unused {
            problems
                .retain(|problem| !matches!(problem, Problem::WrongData { fid: other, .. } if *other == fid));
            problems.push(Problem::DataWithoutFile { fid });
        }
    }
    examination.problems.extend(problems);
    Ok(())
}
