//! Creates and opens the engine's database in a directory, and converts its errors.

use std::{fs, io, path::Path, sync::Arc};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, compaction::Leveled};

use super::{LocalConfig, TABLE_BYTES};
use crate::{OsdError, files, target};

/// The engine's number of the key space that holds all records: the only one besides the engine's
/// own (0).
pub(crate) const KEY_SPACE: u64 = 1;
/// A file that every database of the engine has.
const ENGINE_MARK: &str = "version";
/// Maximum number of table files that the engine keeps open.
const OPEN_TABLES_MAX: usize = 64;
/// Maximum size of all journals, bytes.
const JOURNALS_BYTES_MAX: u64 = 64 << 20;

/// Creates an empty database under a temporary name and renames it: an interruption leaves no
/// partial database at `path`.
pub(super) fn create(path: &Path, config: LocalConfig) -> Result<(), OsdError> {
    let new = target::incomplete_index(path);
    drop(create_empty(&new, config)?);
    fs::rename(&new, path).map_err(OsdError::io("rename", &new))?;
    let parent = files::parent(path);
    files::sync_dir(&parent).map_err(OsdError::io("sync", parent))
}

/// Creates an empty database in a new directory; removes what an interruption left there.
pub(crate) fn create_empty(new: &Path, config: LocalConfig) -> Result<(Database, Keyspace), OsdError> {
    match fs::remove_dir_all(new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(OsdError::io("remove", new)(e)),
        _ => {}
    }
    files::create_dir(new).map_err(OsdError::io("make directory", new))?;
    open_engine(new, config)
}

/// Rejects a directory without an index: the engine would create an empty one there.
pub(super) fn check_exists(path: &Path) -> Result<(), OsdError> {
    let missing = |why| OsdError::MissingStore {
        path: path.into(),
        why,
    };
    match path.is_dir() {
        false => Err(missing("no such directory")),
        true if !path.join(ENGINE_MARK).exists() => Err(missing("no index in it")),
        true => Ok(()),
    }
}

/// Opens the engine's database. If the engine panics on damaged files, fails with
/// [`OsdError::Engine`].
pub(super) fn open_engine(path: &Path, config: LocalConfig) -> Result<(Database, Keyspace), OsdError> {
    let open = std::panic::AssertUnwindSafe(|| try_open_engine(path, config));
    std::panic::catch_unwind(open).unwrap_or_else(|panic| {
        let why = panic.downcast_ref::<String>().cloned();
        let why = why.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(OsdError::Engine {
            op: "open",
            path: path.into(),
            why: format!("its files are damaged: {}", why.unwrap_or_default()),
        })
    })
}

fn try_open_engine(path: &Path, config: LocalConfig) -> Result<(Database, Keyspace), OsdError> {
    let db = Database::builder(path)
        .worker_threads(1)
        .cache_size(config.cache_bytes)
        .max_cached_files(Some(OPEN_TABLES_MAX))
        .max_journaling_size(JOURNALS_BYTES_MAX)
        .manual_journal_persist(true)
        .open()
        .map_err(engine_error("open", path))?;
    let options = || {
        KeyspaceCreateOptions::default()
            .compaction_strategy(Arc::new(Leveled::default().with_table_target_size(TABLE_BYTES)))
            .max_memtable_size(config.memtable_bytes)
            .manual_journal_persist(true)
    };
    let keyspace = db
        .keyspace("index", options)
        .map_err(engine_error("open", path))?;
    Ok((db, keyspace))
}

/// Converts an error of the engine in operation `op` on the index `path`.
pub(crate) fn engine_error(op: &'static str, path: &Path) -> impl FnOnce(fjall::Error) -> OsdError {
    let path = path.to_path_buf();
    move |e| match e {
        fjall::Error::Io(source) => OsdError::io(op, path)(source),
        e => OsdError::Engine {
            op,
            path,
            why: e.to_string(),
        },
    }
}
