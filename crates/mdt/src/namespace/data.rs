//! Changes of the data of files on the MDT.

use osd::{ExtentData, ObjAttr, SetAttr};
use wire::{Errno, Fid, Transno};

use super::{Attempts, Plan};
use crate::store::{Change, FileData, RequestStore};

/// A change of a file's data.
#[derive(Clone, Debug)]
pub enum DataChange {
    /// Writes extents.
    Write(Vec<ExtentData>),
    /// Frees the bytes from the first to the second offset; with `u64::MAX` as the second, sets the
    /// size to the first.
    Punch(u64, u64),
    /// Changes only times.
    Times,
}

impl DataChange {
    /// The end of the bytes that the change adds or keeps.
    fn end(&self) -> u64 {
        match self {
            DataChange::Write(extents) => extents.iter().map(|e| e.offset + e.len()).max().unwrap_or(0),
            DataChange::Punch(start, u64::MAX) => *start,
            DataChange::Punch(..) | DataChange::Times => 0,
        }
    }

    /// The bytes of the blocks that the change needs.
    fn range(&self) -> std::ops::Range<u64> {
        match self {
            DataChange::Write(extents) => extents.first().map_or(0, |e| e.offset)..self.end(),
            DataChange::Punch(start, end) => *start..*end,
            DataChange::Times => 0..0,
        }
    }

    fn apply(&self, data: &mut FileData) {
        match self {
            DataChange::Write(extents) => extents.iter().for_each(|extent| data.write(extent)),
            DataChange::Punch(start, u64::MAX) => data.truncate(*start),
            DataChange::Punch(start, end) => data.zero(*start..(*end).min(data.attr.size)),
            DataChange::Times => {}
        }
    }
}

/// Changes a file's data, and sets attributes. Returns the transaction number and the new
/// attributes.
///
/// # Errors
///
/// `ENOENT` if the file is gone; `EINVAL` if it has no part on the MDT; `EFBIG` beyond that part;
/// `ENOSPC`; or the error of reading the store.
pub async fn change_data<'a>(
    store: impl Into<RequestStore<'a>>,
    fid: Fid,
    what: &DataChange,
    set: SetAttr,
) -> Result<(Transno, ObjAttr), Errno> {
    let store = store.into();
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[fid]).await?;
        let inode = store.inode(fid).await?;
        let max = inode.data_max().ok_or(Errno::EINVAL)?;
        if what.end() > max {
            return Err(Errno::EFBIG);
        }
        let mut data = store.file_data(fid, what.range()).await?;
        what.apply(&mut data);
        set.apply_to(&mut data.attr);
        let attr = data.attr;
        let mut change = match what {
            DataChange::Write(_) => Change::growing(),
            DataChange::Punch(..) | DataChange::Times => Change::new(),
        };
        change.change_data(fid, data, !matches!(what, DataChange::Times));
        if let Some(done) = attempts.apply(Plan::new(change, fid, inode, [0; 4]), &stamp)? {
            return Ok((done.transno, attr));
        }
    }
}
