//! The engine's journals, synced outside of the engine.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
};

use crate::OsdError;

/// The engine's journals: files `N.jnl`, of which the last is written; the engine syncs one itself before it begins
/// the next. They are kept open so that an error of writing back is seen here.
pub(crate) struct Journals {
    dir: PathBuf,
    open: HashMap<PathBuf, fs::File>,
}

impl Journals {
    pub(crate) fn new(dir: &Path) -> Journals {
        Journals {
            dir: dir.into(),
            open: HashMap::new(),
        }
    }

    /// Everything that the kernel has of them is on disk when this returns.
    pub(crate) fn sync(&mut self) -> Result<(), OsdError> {
        let mut there = HashMap::new();
        for entry in fs::read_dir(&self.dir).map_err(OsdError::io("list", &self.dir))? {
            let path = entry.map_err(OsdError::io("list", &self.dir))?.path();
            if path.extension().is_none_or(|e| e != "jnl") {
                continue;
            }
            let file = match self.open.remove(&path) {
                Some(file) => file,
                None => match fs::File::open(&path) {
                    Ok(file) => file,
                    // Its content is in the sorted files by now, which the engine syncs before it removes a journal.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                    Err(e) => return Err(OsdError::io("open", path)(e)),
                },
            };
            file.sync_data().map_err(OsdError::io("sync", &path))?;
            there.insert(path, file);
        }
        if there.is_empty() {
            let why = "no journal (*.jnl) to sync: not the engine version that this was written for".into();
            return Err(OsdError::Engine {
                what: "sync",
                path: self.dir.clone(),
                why,
            });
        }
        self.open = there;
        Ok(())
    }
}
