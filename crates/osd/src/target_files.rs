//! Small files of a target beside its stores: keys, a copy of the configuration, a mark. They are
//! behind a trait, so that a target in memory needs no directory.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::files;

/// The small files of one target. The calls block on the disk.
pub trait TargetFiles: Send + Sync {
    /// The place of the files, for messages.
    fn place(&self) -> String;

    /// The contents of a file; `None` if there is no such file.
    ///
    /// # Errors
    ///
    /// The error of reading.
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;

    /// Replaces a file atomically, or creates it. The new contents are durable when this returns.
    /// Only the user of the server can read the file.
    ///
    /// # Errors
    ///
    /// As [`files::replace`].
    fn replace(&self, name: &str, contents: &[u8]) -> io::Result<()>;

    /// Removes a file, durably. A missing file is no error.
    ///
    /// # Errors
    ///
    /// The error of removing the file or of syncing the directory.
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// Files in a target's directory.
#[derive(Clone, Debug)]
pub struct LocalFiles(pub PathBuf);

impl TargetFiles for LocalFiles {
    fn place(&self) -> String {
        self.0.display().to_string()
    }

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.0.join(name)) {
            Ok(contents) => Ok(Some(contents)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn replace(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        files::replace(&self.0.join(name), contents, files::FILE_MODE)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.0.join(name)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
            Ok(()) => files::sync_dir(&self.0),
        }
    }
}

/// Files in memory: clones share them, and they are lost with the last clone.
#[derive(Clone, Debug, Default)]
pub struct MemoryFiles(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl TargetFiles for MemoryFiles {
    fn place(&self) -> String {
        "memory".to_owned()
    }

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().get(name).cloned())
    }

    fn replace(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        self.0.lock().insert(name.to_owned(), contents.to_owned());
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.lock().remove(name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(files: &dyn TargetFiles) {
        assert_eq!(files.read("a").unwrap(), None);
        files.remove("a").unwrap();
        for text in ["one", "two"] {
            files.replace("a", text.as_bytes()).unwrap();
            assert_eq!(files.read("a").unwrap().as_deref(), Some(text.as_bytes()));
        }
        files.remove("a").unwrap();
        assert_eq!(files.read("a").unwrap(), None);
    }

    #[test]
    fn files_are_replaced_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        check(&LocalFiles(dir.path().to_owned()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        check(&MemoryFiles::default());
    }

    #[test]
    fn missing_directory_is_an_error_for_changes() {
        let dir = tempfile::tempdir().unwrap();
        let files = LocalFiles(dir.path().join("none"));
        assert_eq!(files.read("a").unwrap(), None);
        assert!(files.replace("a", b"x").is_err());
    }
}
