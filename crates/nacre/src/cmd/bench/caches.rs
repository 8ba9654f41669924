//! Drops data from caches, so that a comparison reads it from the disk on every subject: the caches
//! of the client, and the page cache of the files in which a subject stores its data.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::{BenchError, DropCaches};
use params::Registry;
use rustix::fs::{Advice, fadvise};

use super::bench_instance::BenchInstance;
use crate::output::describe;

/// Time limit for a client to drop its data after it has cancelled its locks.
const DROP_MAX: Duration = Duration::from_secs(10);
/// Interval of checks of the cached data.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Drops the files in a directory from the page cache.
pub(super) fn of_files(dir: PathBuf) -> DropCaches {
    drop_caches(move || drop_files(&dir))
}

/// Drops the data of a mount, and of the stores in `dir`.
pub(super) fn of_mount(instance: &BenchInstance, dir: &Path) -> DropCaches {
    let (params, dir) = (instance.params(), dir.to_owned());
    drop_caches(move || {
        params.set(LRU_SIZE, CLEAR)?;
        wait_until_dropped(&|| params.values(MAX_CACHED_MB))?;
        drop_files(&dir)
    })
}

/// Drops the data of the library's clients, and of the stores in `dir`.
pub(super) fn of_library(params: Registry, dir: &Path) -> DropCaches {
    let dir = dir.to_owned();
    drop_caches(move || {
        params.set(LRU_SIZE, CLEAR)?;
        wait_until_dropped(&|| {
            let found = params.get(MAX_CACHED_MB).into_iter();
            Ok(found.map(|(_, value)| value).collect())
        })?;
        drop_files(&dir)
    })
}

/// Setting this parameter to [`CLEAR`] cancels all unused locks. A client drops cached data when it
/// cancels the lock that covers the data.
const LRU_SIZE: &str = "ldlm.namespaces.*.lru_size";
const CLEAR: &str = "clear";
/// Shows how much data each client caches.
const MAX_CACHED_MB: &str = "llite.*.max_cached_mb";

fn drop_caches(work: impl Fn() -> Result<()> + Send + Sync + 'static) -> DropCaches {
    Arc::new(move || {
        work().map_err(|e| BenchError::Stage {
            object: "caches".to_owned(),
            reason: describe(&e),
        })
    })
}

/// Waits until no client caches a MiB or more.
fn wait_until_dropped(values: &dyn Fn() -> Result<Vec<String>>) -> Result<()> {
    let start_time = Instant::now();
    while !values()?.iter().all(|value| value.contains("\nused_mb: 0\n")) {
        if start_time.elapsed() > DROP_MAX {
            bail!(
                "a client still caches data {} s after the cancellation of its locks",
                DROP_MAX.as_secs()
            );
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Drops the regular files below a directory from the page cache. Leaves out mounted file systems.
fn drop_files(dir: &Path) -> Result<()> {
    let cannot_drop = || format!("cannot drop {} from the page cache", dir.display());
    for entry in fs::read_dir(dir).with_context(cannot_drop)? {
        let entry = entry.with_context(cannot_drop)?;
        let (path, file_type) = (entry.path(), entry.file_type().with_context(cannot_drop)?);
        if file_type.is_dir() && fuse::mounted_at(&path).is_none() {
            drop_files(&path)?;
        }
        // Ignore a failed open: the process may remove files meanwhile, such as those of an index.
        if file_type.is_file()
            && let Ok(file) = File::open(&path)
        {
            fadvise(&file, 0, None, Advice::DontNeed).with_context(cannot_drop)?;
        }
    }
    Ok(())
}
