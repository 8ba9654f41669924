//! Destroys a target: removes only the target's own files. An interrupted destroy is recognisable
//! and can be resumed.

use crate::target::{
    GENERATION, LABEL, LABEL_COPY, LABEL_DAMAGED, LABEL_DESTROYED, LABEL_NEW, OBJECTS, TargetDir,
    TargetError, generation_paths, lock,
};
use crate::{engine_files, files, journal};
use std::path::Path;
use std::{fs, io};

impl TargetDir {
    /// Whether the directory holds a target, including one after an interrupted mkfs or destroy.
    pub fn is_target(path: &Path) -> bool {
        let labels = [LABEL, LABEL_NEW, LABEL_DESTROYED];
        path.is_dir() && labels.iter().any(|label| path.join(label).is_file())
    }

    /// Destroys a target that no server uses. Files that do not belong to the target stay. After an
    /// interruption the target counts as partly destroyed, no server starts on it, and another call
    /// resumes the destroy.
    ///
    /// # Errors
    ///
    /// [`TargetError::InUse`] if the target is locked; [`TargetError::Io`] if a file cannot be
    /// removed.
    pub fn destroy(path: &Path) -> Result<(), TargetError> {
        let _lock = lock(path, true)?;
        let (label, marker) = (path.join(LABEL), path.join(LABEL_DESTROYED));
        let ignore_missing = |path: &Path, e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(TargetError::Io {
                path: path.into(),
                source: e,
            }),
        };
        let sync = || fs::File::open(path).and_then(|dir| dir.sync_all());
        fs::rename(&label, &marker).or_else(|e| ignore_missing(&label, e))?;
        sync().or_else(|e| ignore_missing(path, e))?;
        let replaced = engine_files::replaced_indexes(path).map_err(|source| TargetError::Io {
            path: path.into(),
            source,
        })?;
        let (indexes, locks) = generation_paths(path);
        for part in [path.join(OBJECTS)].into_iter().chain(indexes).chain(replaced) {
            fs::remove_dir_all(&part).or_else(|e| ignore_missing(&part, e))?;
        }
        let repair_files = journal::repair_files(path).map_err(|source| TargetError::Io {
            path: path.into(),
            source,
        })?;
        let replaced = [LABEL, LABEL_COPY, LABEL_DAMAGED, GENERATION].map(files::temporary_name);
        let others = [LABEL_COPY, LABEL_DAMAGED, LABEL_NEW, LABEL_DESTROYED, GENERATION].map(String::from);
        let others = others.into_iter().chain(replaced).map(|name| path.join(name));
        for part in repair_files.into_iter().chain(others).chain(locks) {
            fs::remove_file(&part).or_else(|e| ignore_missing(&part, e))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::target::{TargetKind, TargetLabel};

    fn create_target(path: &Path) -> TargetDir {
        let label = TargetLabel::new(TargetKind::Ost, "testfs", 10, "0123abcd");
        TargetDir::create(path, &label, |_| Ok(())).unwrap()
    }

    #[test]
    fn destroy_keeps_files_that_are_not_the_targets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let in_use = create_target(&path);
        assert!(matches!(
            TargetDir::destroy(&path),
            Err(TargetError::InUse { .. })
        ));
        drop(in_use);
        fs::create_dir_all(path.join("objects/1/2")).unwrap();
        fs::write(path.join("objects/1/2/3"), "x").unwrap();
        fs::write(path.join("thesis"), "mine").unwrap();
        fs::write(path.join("damaged-0-3.jnl"), "x").unwrap();
        fs::create_dir(path.join("index.damaged-0")).unwrap();
        fs::write(path.join(files::temporary_name(LABEL)), "x").unwrap();
        TargetDir::destroy(&path).unwrap();
        let remaining: Vec<_> = fs::read_dir(&path).unwrap().flatten().collect();
        assert_eq!(remaining.len(), 1);
        assert_eq!(remaining[0].file_name(), "thesis");
    }

    #[test]
    fn interrupted_destroy_blocks_open_and_can_be_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        drop(create_target(&path));
        fs::rename(path.join(LABEL), path.join(LABEL_DESTROYED)).unwrap();
        assert!(matches!(
            TargetDir::open(&path),
            Err(TargetError::IncompleteDestroy(_))
        ));
        assert!(TargetDir::is_target(&path));
        TargetDir::destroy(&path).unwrap();
        assert!(!TargetDir::is_target(&path));
    }
}
