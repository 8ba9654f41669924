//! Deleting a target: only what is the target's, and so that an interrupted deletion is known and goes on.

use crate::journal;
use crate::target::{
    INDEX, LABEL, LABEL_DESTROYED, LABEL_NEW, LABEL_REPLACED, LOCK, OBJECTS, TargetDir, TargetError, lock,
};
use std::path::Path;
use std::{fs, io};

impl TargetDir {
    /// Whether the directory is a target's, also one that is half made or half destroyed.
    pub fn is_one(path: &Path) -> bool {
        let labels = [LABEL, LABEL_NEW, LABEL_DESTROYED];
        path.is_dir() && labels.iter().any(|label| path.join(label).is_file())
    }

    /// Deletes a target that no server runs on, and leaves in its directory what is not the target's. When that is interrupted, the
    /// target is known to be half deleted, and is not served; this then goes on where it was. Fails when it is in use, or when the
    /// file system refuses.
    pub fn destroy(path: &Path) -> Result<(), TargetError> {
        let _lock = lock(path, true)?;
        let (old, marker) = (path.join(LABEL), path.join(LABEL_DESTROYED));
        let io = |path: &Path, e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(TargetError::Io {
                path: path.into(),
                source: e,
            }),
        };
        let sync = || fs::File::open(path).and_then(|dir| dir.sync_all());
        fs::rename(&old, &marker).or_else(|e| io(&old, e))?;
        sync().or_else(|e| io(path, e))?;
        for name in [OBJECTS, INDEX, "index.new"] {
            let part = path.join(name);
            fs::remove_dir_all(&part).or_else(|e| io(&part, e))?;
        }
        let copies = journal::copies(path).map_err(|source| TargetError::Io {
            path: path.into(),
            source,
        })?;
        let others = [LABEL_NEW, LABEL_REPLACED, LABEL_DESTROYED, LOCK];
        for part in copies.into_iter().chain(others.map(|name| path.join(name))) {
            fs::remove_file(&part).or_else(|e| io(&part, e))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::target::{TargetKind, TargetLabel};

    fn make(path: &Path) -> TargetDir {
        let label = TargetLabel::new(TargetKind::Ost, "testfs", 10, "0123abcd");
        TargetDir::create(path, &label, |_| Ok(())).unwrap()
    }

    #[test]
    fn a_destroyed_target_leaves_only_foreign_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let held = make(&path);
        assert!(matches!(
            TargetDir::destroy(&path),
            Err(TargetError::InUse { .. })
        ));
        drop(held);
        fs::create_dir_all(path.join("objects/1/2")).unwrap();
        fs::write(path.join("objects/1/2/3"), "x").unwrap();
        fs::write(path.join("thesis"), "mine").unwrap();
        fs::write(path.join("damaged-0-3.jnl"), "x").unwrap();
        fs::write(path.join(LABEL_REPLACED), "x").unwrap();
        TargetDir::destroy(&path).unwrap();
        let left: Vec<_> = fs::read_dir(&path).unwrap().flatten().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].file_name(), "thesis");
    }

    #[test]
    fn a_half_deleted_target_is_not_served_and_its_deletion_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        drop(make(&path));
        fs::rename(path.join(LABEL), path.join(LABEL_DESTROYED)).unwrap();
        assert!(matches!(
            TargetDir::open(&path),
            Err(TargetError::HalfDestroyed(_))
        ));
        assert!(TargetDir::is_one(&path));
        TargetDir::destroy(&path).unwrap();
        assert!(!TargetDir::is_one(&path));
    }
}
