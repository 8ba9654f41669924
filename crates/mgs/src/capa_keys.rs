//! The keys of object capabilities. The first start creates a key. The keys are secret: they are
//! not in the store with the other logs, but in a file that only its owner can read. The MGS serves
//! them as a log, and only to registered targets.

use std::io;
use std::sync::Arc;

use mgc::{CAPA_KEYS, CapaKeys};
use osd::TargetFiles;

use crate::logs::{Log, Logs};
use crate::{MgsError, stored_values};

/// Generates a key of 32 unpredictable bytes.
pub type KeySource = Arc<dyn Fn() -> io::Result<[u8; 32]> + Send + Sync>;

/// Name of the file with the keys.
pub const CAPA_KEYS_FILE: &str = "capa-keys";
/// Bit that marks the id of this log in requests. No log in the store has an id with this bit.
const ID_FLAG: u64 = 1 << 63;

/// The keys, their file, and the log that serves them.
pub(crate) struct KeyFile {
    /// The place of the file; `None` if the keys are only in memory.
    files: Option<Arc<dyn TargetFiles>>,
    new_key: KeySource,
    keys: CapaKeys,
    /// One log, [`CAPA_KEYS`], in memory.
    log: Logs,
}

impl KeyFile {
    /// Opens the file of keys, and creates it, with a new key, if it is missing. Without `files`
    /// the key is new, and only in memory. `now` is in seconds since 1970.
    pub(crate) fn open(
        files: Option<Arc<dyn TargetFiles>>,
        new_key: KeySource,
        now: i64,
    ) -> Result<KeyFile, MgsError> {
        let stored = match &files {
            Some(files) => read(&**files)?,
            None => None,
        };
        let mut file = KeyFile {
            files,
            new_key,
            keys: CapaKeys::default(),
            log: Logs::in_memory(),
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
        let key = (self.new_key)().map_err(|e| MgsError::Keys {
            why: format!("cannot generate a key: {e}"),
        })?;
        let (keys, files) = (self.keys.rotated(key), self.files.clone());
        Ok(move || {
            if let Some(files) = &files {
                let text = format!("{}\n", keys.to_text());
                let written = files.replace(CAPA_KEYS_FILE, text.as_bytes());
                written.map_err(|e| io_error("write", &**files, &e))?;
            }
            Ok(keys)
        })
    }

    /// Serves these keys from now on.
    pub(crate) fn publish(&mut self, keys: CapaKeys, now: i64) -> Result<(), MgsError> {
        // Build a new log: the old one would still contain the keys that are no longer valid.
        let mut log = Logs::in_memory();
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

fn io_error(verb: &str, files: &dyn TargetFiles, e: &io::Error) -> MgsError {
    MgsError::Keys {
        why: format!("cannot {verb} {CAPA_KEYS_FILE} in {}: {e}", files.place()),
    }
}

/// Reads the file of keys; `None` if it does not exist.
fn read(files: &dyn TargetFiles) -> Result<Option<CapaKeys>, MgsError> {
    let contents = files.read(CAPA_KEYS_FILE);
    let Some(contents) = contents.map_err(|e| io_error("read", files, &e))? else {
        return Ok(None);
    };
    let keys: Result<CapaKeys, String> = String::from_utf8_lossy(&contents).parse();
    let why = match keys {
        Ok(keys) if !keys.is_empty() => return Ok(Some(keys)),
        Ok(_) => "it is empty".to_owned(),
        Err(why) => why,
    };
    let why = format!(
        "{CAPA_KEYS_FILE} in {}: {why}; remove the file to create new keys",
        files.place()
    );
    Err(MgsError::Keys { why })
}

/// A key from the kernel's random numbers.
pub(crate) fn random_key() -> io::Result<[u8; 32]> {
    let mut key = [0; 32];
    getrandom::fill(&mut key)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use osd::LocalFiles;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_key_file_has_mode_0600_and_at_most_two_keys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("capa-keys");
        let try_open = |files| KeyFile::open(files, Arc::new(random_key), 1);
        let files: Arc<dyn TargetFiles> = Arc::new(LocalFiles(dir.path().to_owned()));
        let open = || try_open(Some(files.clone())).unwrap();
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
        assert_ne!(try_open(None).unwrap().keys, first);
        for bad in ["", "1:xyz"] {
            fs::write(&path, bad).unwrap();
            let why = try_open(Some(files.clone())).err().unwrap().to_string();
            assert!(
                why.contains("capa-keys") && why.contains("remove the file"),
                "{why}"
            );
        }
    }
}
