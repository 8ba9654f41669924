//! Copies the objects that the server of an earlier generation may still be changing.
//!
//! Blocks that a late write of the old server changes after the copy do not count: the clients of
//! that server keep the data of every write that was not reported as durable, and send it again.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use wire::Fid;

use super::{FileSystem, ObjectFile, file_path, object_marks, record};
use crate::{Batch, Index, OsdError, READ_PIECE, Seek, files, prefix_end};

/// Maximum number of marks read at once.
const PAGE: usize = 1024;

/// Removes the marks of earlier runs. For each object that a server of an earlier generation than
/// `generation` marked, copies the file and makes its record refer to the copy. Returns the files
/// that were copied: the caller removes them after a sync of the index. Blocks on the disk.
///
/// # Errors
///
/// [`OsdError::Io`] if a file cannot be copied, [`OsdError::NoSpace`], or an error of the index.
pub(super) fn adopt_objects(
    file_system: &dyn FileSystem,
    root: &Path,
    index: &Arc<dyn Index>,
    generation: u32,
) -> Result<Vec<PathBuf>, OsdError> {
    let mut copied = Vec::new();
    let mut from = object_marks::PREFIX.to_vec();
    loop {
        let marks = index
            .scan(&from, &prefix_end(&object_marks::PREFIX), PAGE)
            .wait()?;
        let Some((last, _)) = marks.last() else {
            break;
        };
        if matches!(index.apply(Batch::new()), Err(OsdError::Invalid(_))) {
            // The index is open for reading only.
            break;
        }
        from = [last, &b"\0"[..]].concat();
        for (key, value) in marks {
            let mut batch = Batch::new();
            batch.delete(key.clone());
            let marked_by = value[..].try_into().map(u32::from_be_bytes);
            let is_earlier = marked_by.is_ok_and(|marked_by| marked_by < generation);
            if let Some(fid) = object_marks::fid_of(&key).filter(|_| is_earlier) {
                copied.extend(adopt(file_system, root, index, (fid, generation), &mut batch)?);
            }
            index.apply(batch)?;
        }
    }
    if !copied.is_empty() {
        tracing::info!(
            "{}: copied {} objects that the server of the earlier generation may still be changing",
            root.display(),
            copied.len()
        );
    }
    Ok(copied)
}

/// Copies the file of one object, if it has one, and adds its new record to the batch.
fn adopt(
    file_system: &dyn FileSystem,
    root: &Path,
    index: &Arc<dyn Index>,
    (fid, generation): (Fid, u32),
    batch: &mut Batch,
) -> Result<Option<PathBuf>, OsdError> {
    // A marked object without a record was destroyed.
    let Some(value) = index.get(&record::key(&fid)).wait()? else {
        return Ok(None);
    };
    let corrupt = |why| OsdError::Corrupt {
        path: root.into(),
        record: format!("of object {:x}:{:x}", fid.f_seq, fid.f_oid),
        why,
    };
    let found = record::read(&value).map_err(corrupt)?;
    let (old, new) = [found.generation, generation]
        .map(|generation| file_path(root, &fid, generation))
        .into();
    let copied = match file_system.open(&old) {
        _ if found.generation == generation => None,
        Ok(file) => {
            copy(file_system, &*file, &new).map_err(OsdError::io("copy to", &new))?;
            Some(old)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(OsdError::io("open", old)(e)),
    };
    batch.put(
        record::key(&fid),
        record::write(&record::ObjectRecord { generation, ..found }),
    );
    Ok(copied)
}

/// Copies a sparse file; the copy is durable when this returns.
fn copy(file_system: &dyn FileSystem, from: &dyn ObjectFile, path: &Path) -> io::Result<()> {
    // An interrupted takeover may have left a part of the copy.
    match file_system.remove(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let to = file_system.create(path)?;
    let (size, _) = from.measure()?;
    to.set_size(size)?;
    let mut offset = 0;
    while offset < size {
        let start = match from.seek(offset, Seek::Data) {
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => break,
            found => found?,
        };
        let end = from.seek(start, Seek::Hole)?.min(size);
        offset = start;
        while offset < end {
            let len = (end - offset).min(READ_PIECE);
            let data = from.read(offset, len, false)?.unwrap_or_default().concat();
            if data.is_empty() {
                // The old server truncates the file meanwhile: that does not count either.
                break;
            }
            to.write(offset, &data)?;
            offset += data.len() as u64;
        }
        offset = offset.max(end);
    }
    to.sync_data()?;
    file_system.sync_dir(&files::parent(path))
}
