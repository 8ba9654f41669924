//! The keys of object capabilities. The first start creates a key. The keys are secret: they are
//! not in the store with the other logs, but in a file that only its owner can read. The MGS serves
//! them as a log, and only to registered targets.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mgc::{CAPA_KEYS, CapaKeys};
use osd::{MemoryIndex, files};

use crate::logs::{Log, Logs};
use crate::{MgsError, stored_values};

/// Name of the file in the MGS's directory.
pub const CAPA_KEYS_FILE: &str = "capa-keys";
/// Bit that is set in the id of this log, and in no id of a log in the store.
const ID_FLAG: u64 = 1 << 63;

/// The keys, their file, and the log that serves them.
pub(crate) struct KeyFile {
    /// The file; `None` if the keys are only in memory.
    path: Option<PathBuf>,
    keys: CapaKeys,
    /// One log, [`CAPA_KEYS`], in memory.
    log: Logs,
}

impl KeyFile {
    /// Opens the file of keys, and creates it, with a new key, if it is missing. Without a path the
    /// key is new, and only in memory. `now` is in seconds since 1970.
    pub(crate) fn open(path: Option<PathBuf>, now: i64) -> Result<KeyFile, MgsError> {
        let stored = match &path {
            Some(path) => read(path)?,
            None => None,
        };
        let mut file = KeyFile {
            path,
            keys: CapaKeys::default(),
            log: Logs::load(Arc::new(MemoryIndex::default()))?,
        };
        let keys = match stored {
            Some(keys) => keys,
            None => file.prepare_rotation()?()?,
        };
        file.publish(keys, now)?;
        Ok(file)
    }

    /// The ids of the keys, the current one first.
    pub(crate) fn ids(&self) -> String {
        let ids: Vec<String> = self.keys.ids().map(|id| id.to_string()).collect();
        ids.join(" ")
    }

    /// Creates a new key. The former current key stays valid until the next rotation; older ones
    /// become invalid. The returned function writes the keys to the file, waits until they are on
    /// disk, and returns them for [`KeyFile::publish`].
    pub(crate) fn prepare_rotation(
        &self,
    ) -> Result<impl FnOnce() -> Result<CapaKeys, MgsError> + use<>, MgsError> {
        let (keys, path) = (self.keys.rotated(random()?), self.path.clone());
        Ok(move || {
            if let Some(path) = &path {
                let text = format!("{}\n", keys.to_text());
                let written = files::replace(path, text.as_bytes(), files::FILE_MODE);
                written.map_err(|e| io_error("write", path, &e))?;
            }
            Ok(keys)
        })
    }

    /// Serves these keys from now on.
    pub(crate) fn publish(&mut self, keys: CapaKeys, now: i64) -> Result<(), MgsError> {
        // Build a new log: the old one would still contain the keys that are no longer valid.
        let mut log = Logs::load(Arc::new(MemoryIndex::default()))?;
        stored_values::set(&mut log, CAPA_KEYS, CAPA_KEYS, Some(&keys.to_text()), now)?;
        (self.keys, self.log) = (keys, log);
        Ok(())
    }

    /// The id of the log in requests, and the log.
    pub(crate) fn log(&self) -> Option<(u64, &Log)> {
        self.log.get(CAPA_KEYS).map(|log| (log.id | ID_FLAG, log))
    }

    /// Whether an id in a request is the id of the log of keys.
    pub(crate) fn is_log_id(id: u64) -> bool {
        id & ID_FLAG != 0
    }
}

fn io_error(verb: &str, path: &Path, e: &io::Error) -> MgsError {
    MgsError::Keys {
        why: format!("cannot {verb} {}: {e}", path.display()),
    }
}

/// Reads the file of keys; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<CapaKeys>, MgsError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error("read", path, &e)),
    };
    let keys: Result<CapaKeys, String> = text.parse();
    let why = match keys {
        Ok(keys) if !keys.is_empty() => return Ok(Some(keys)),
        Ok(_) => "it is empty".to_owned(),
        Err(why) => why,
    };
    let why = format!("{}: {why}; remove the file to create new keys", path.display());
    Err(MgsError::Keys { why })
}

fn random() -> Result<[u8; 32], MgsError> {
    let source = Path::new("/dev/urandom");
    let mut bytes = [0; 32];
    let done = fs::File::open(source).and_then(|mut file| file.read_exact(&mut bytes));
    done.map_err(|e| io_error("read", source, &e))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_key_file_has_mode_0600_and_at_most_two_keys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("capa-keys");
        let open = || KeyFile::open(Some(path.clone()), 1).unwrap();
        let first = open().keys;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(open().keys, first);
        let mut file = open();
        for ids in ["2 1", "3 2"] {
            let keys = file.prepare_rotation().unwrap()().unwrap();
            file.publish(keys, 2).unwrap();
            assert_eq!((file.ids(), open().ids()), (ids.to_owned(), ids.to_owned()));
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_ne!(KeyFile::open(None, 1).unwrap().keys, first);
        for bad in ["", "1:xyz"] {
            fs::write(&path, bad).unwrap();
            let why = KeyFile::open(Some(path.clone()), 1).err().unwrap().to_string();
            assert!(
                why.contains("capa-keys") && why.contains("remove the file"),
                "{why}"
            );
        }
    }
}
