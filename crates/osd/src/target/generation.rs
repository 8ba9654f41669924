//! The generation of a target on a store that several servers share.
//!
//! A target with several service nodes can move to another node. If its server has ended, its lock
//! is free, and the next server continues with the same files. If the server does not answer but
//! may still run (it is stopped, or its node is cut off), another server takes the target over by
//! force: it begins a new generation. No clock takes part in this.
//!
//! - The file `generation` holds the number of the present generation. The server reads it after
//!   each sync and before it reports anything as durable ([`Fence::check`]). A server that finds a
//!   higher number than its own reports nothing and ends.
//! - Each generation has its own index, a copy made after the number was written. So a batch that
//!   an old server reported as durable is in the copy, and one that it writes later is not read.
//! - Each generation has its own names for new files of objects, and copies the objects that the
//!   old server may still be changing ([`crate::LocalObjects`]).
//! - Each generation has its own lock file.
//!
//! The number is overwritten in place, not replaced by a rename: network file systems compare a
//! file with its server at each open, but may remember a directory's names for a minute.

use std::{
    fmt, fs,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use super::{INDEX, LOCK, TargetError, lock::try_flock};
use crate::{OsdError, files};

/// The file with the number of the generation.
pub(crate) const GENERATION: &str = "generation";
/// Number of attempts to read the file while another server writes it.
const READS_MAX: u32 = 3;
/// The end of the name of an index that is being made.
const INCOMPLETE: &str = ".new";

/// Reads the number of a target's generation; `None`: the target has no such file, because it has
/// at most one service node.
fn read(target: &Path) -> io::Result<Option<u32>> {
    for _ in 0..READS_MAX {
        let mut text = String::new();
        match fs::File::open(target.join(GENERATION)) {
            Ok(mut file) => file.read_to_string(&mut text)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        if let Some(number) = parse(&text) {
            return Ok(Some(number));
        }
    }
    let line = text_of(newest_index(target));
    let why = format!(
        "damaged: expected a number and its checksum. Make sure that no server of this target runs, and write this line into the file, which selects the newest index: {}",
        line.trim_end()
    );
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

fn text_of(number: u32) -> String {
    let number = format!("{number:010}");
    format!("{number} crc32c {:08x}\n", crc32c::crc32c(number.as_bytes()))
}

fn parse(text: &str) -> Option<u32> {
    let number = text.split(' ').next()?.parse().ok()?;
    (text_of(number) == text).then_some(number)
}

/// The number of a target's generation; 0 for a target with at most one service node.
pub(crate) fn current(target: &Path) -> Result<u32, TargetError> {
    let found = read(target).map_err(io_error(target));
    Ok(found?.unwrap_or(0))
}

/// The highest generation that has an index; 0 without any.
fn newest_index(target: &Path) -> u32 {
    earlier(target, u32::MAX, INDEX).pop().unwrap_or(0)
}

/// Whether the target can be taken over by force.
pub(crate) fn is_shared(target: &Path) -> Result<bool, TargetError> {
    Ok(read(target).map_err(io_error(target))?.is_some())
}

/// Begins generation `number`. The caller holds the lock of that generation, or, for generation 0,
/// of the target.
pub(crate) fn write(target: &Path, number: u32) -> Result<(), TargetError> {
    let (path, text) = (target.join(GENERATION), text_of(number));
    let written = match fs::OpenOptions::new().write(true).open(&path) {
        Ok(file) => file
            .write_all_at(text.as_bytes(), 0)
            .and_then(|()| file.sync_all()),
        // A crash or a full disk must not leave an empty file.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            files::replace(&path, text.as_bytes(), files::FILE_MODE)
        }
        Err(e) => Err(e),
    };
    written.map_err(io_error(target))
}

fn io_error(target: &Path) -> impl FnOnce(io::Error) -> TargetError {
    let path = target.join(GENERATION);
    move |source| TargetError::Io { path, source }
}

/// The name of a generation's own file or directory: `name` for generation 0, else with the
/// generation's number.
pub(crate) fn name_in(name: &str, generation: u32) -> String {
    match generation {
        0 => name.to_owned(),
        n => format!("{name}.{n}"),
    }
}

/// The directory of the index of a generation.
pub(crate) fn index_of(target: &Path, generation: u32) -> PathBuf {
    target.join(name_in(INDEX, generation))
}

/// The directory in which an index is made, until it is complete. Each generation has its own: an
/// old server may still be making its index while the next one makes another.
pub(crate) fn incomplete_index(index: &Path) -> PathBuf {
    let name = index.file_name().unwrap_or_default().to_string_lossy();
    index.with_file_name(format!("{name}{INCOMPLETE}"))
}

/// The directory of a target's index: that of its present generation, or of the last one that has
/// an index if a server was killed before it made its own. If the generation cannot be read, the
/// highest one that has an index.
pub(crate) fn index_dir(target: &Path) -> PathBuf {
    let last = current(target).unwrap_or_else(|_| newest_index(target));
    (0..=last)
        .rev()
        .map(|generation| index_of(target, generation))
        .find(|dir| dir.is_dir())
        .unwrap_or_else(|| index_of(target, last))
}

/// The generations below `end` that have a file or directory of this name, in order.
fn earlier(target: &Path, end: u32, name: &str) -> Vec<u32> {
    let number = |found: &str| match found.strip_prefix(name)?.strip_prefix('.') {
        None => (found == name).then_some(0),
        Some(number) => number.parse().ok(),
    };
    let entries = fs::read_dir(target).into_iter().flatten().flatten();
    let mut found: Vec<u32> = entries
        .filter_map(|entry| number(entry.file_name().to_str()?))
        .filter(|generation| *generation < end)
        .collect();
    found.sort_unstable();
    found
}

/// Removes the indexes and lock files of generations before `generation` whose servers have ended.
/// True: none is left.
fn remove_earlier(target: &Path, generation: u32) -> Result<bool, OsdError> {
    let mut all_ended = true;
    for old in earlier(target, generation, LOCK) {
        let path = target.join(name_in(LOCK, old));
        let file = fs::File::open(&path).map_err(OsdError::io("open", &path))?;
        if !try_flock(&file).map_err(OsdError::io("lock", &path))? {
            all_ended = false;
            continue;
        }
        let index = index_of(target, old);
        for dir in [incomplete_index(&index), index] {
            match fs::remove_dir_all(&dir) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(OsdError::io("remove", dir)(e));
                }
                _ => {}
            }
        }
        fs::remove_file(&path).map_err(OsdError::io("remove", &path))?;
        tracing::info!("{}: removed the files of generation {old}", target.display());
    }
    Ok(all_ended)
}

/// All indexes and lock files of a target's generations, for its destruction.
pub(crate) fn all_paths(target: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    // A generation whose server was killed early has only a lock file.
    let locks = earlier(target, u32::MAX, LOCK);
    let mut generations = [earlier(target, u32::MAX, INDEX), locks.clone(), vec![0]].concat();
    generations.sort_unstable();
    generations.dedup();
    let indexes = generations.into_iter().map(|n| index_of(target, n));
    (
        indexes
            .flat_map(|index| [incomplete_index(&index), index])
            .collect(),
        locks.into_iter().map(|n| target.join(name_in(LOCK, n))).collect(),
    )
}

/// The generation in which a server opened its target. Each clone stands for the same generation.
#[derive(Clone, Debug)]
pub struct Fence {
    target: Arc<Path>,
    generation: u32,
    /// The target can be taken over by force.
    shared: bool,
    when_taken_over: Arc<Hook>,
}

/// See [`Fence::when_taken_over`].
type Reaction = dyn Fn(&OsdError) + Send + Sync;

/// The reaction, once it is set.
#[derive(Default)]
struct Hook(OnceLock<Box<Reaction>>);

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hook").field(&self.0.get().is_some()).finish()
    }
}

impl Fence {
    pub(super) fn new(target: &Path, generation: u32, shared: bool) -> Fence {
        Fence {
            target: target.into(),
            generation,
            shared,
            when_taken_over: Arc::default(),
        }
    }

    /// The fence of a store that no other server can take over.
    pub fn unshared(target: &Path) -> Fence {
        Fence::new(target, 0, false)
    }

    /// The generation of the server.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether another server can take the target over by force.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Sets the reaction to a takeover, for all clones: each check that fails calls it with the
    /// error before it returns, so before any request can fail for that reason. Later calls have no
    /// effect.
    pub fn when_taken_over(&self, react: impl Fn(&OsdError) + Send + Sync + 'static) {
        let _ = self.when_taken_over.0.set(Box::new(react));
    }

    /// Fails if another server has begun a later generation, or if the generation cannot be read.
    /// Blocks on the disk.
    ///
    /// # Errors
    ///
    /// [`OsdError::TakenOver`].
    pub fn check(&self) -> Result<(), OsdError> {
        if !self.shared {
            return Ok(());
        }
        let why = match read(&self.target) {
            Ok(Some(current)) if current == self.generation => return Ok(()),
            Ok(Some(current)) => format!(
                "generation {current} has begun, this server has generation {}",
                self.generation
            ),
            Ok(None) => format!("the file '{GENERATION}' is missing"),
            Err(e) => format!("cannot read the file '{GENERATION}': {e}"),
        };
        let error = OsdError::TakenOver {
            path: self.target.to_path_buf(),
            why,
        };
        if let Some(react) = self.when_taken_over.0.get() {
            react(&error);
        }
        Err(error)
    }

    /// Removes the files of earlier generations whose servers have ended. Call it after the index
    /// of this generation was opened. Returns true when no earlier generation is left. Blocks on
    /// the disk.
    ///
    /// # Errors
    ///
    /// [`OsdError::Io`]: a file cannot be opened or removed.
    pub fn remove_earlier_generations(&self) -> Result<bool, OsdError> {
        remove_earlier(&self.target, self.generation)
    }

    /// The directory of the generation's index.
    pub(crate) fn index(&self) -> PathBuf {
        index_of(&self.target, self.generation)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn generation_round_trips_and_damage_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            (current(dir.path()).unwrap(), is_shared(dir.path()).unwrap()),
            (0, false)
        );
        write(dir.path(), 0).unwrap();
        let fence = Fence::new(dir.path(), 0, true);
        fence.check().unwrap();
        write(dir.path(), 7).unwrap();
        assert_eq!(current(dir.path()).unwrap(), 7);
        let why = fence.check().unwrap_err().to_string();
        assert!(why.contains("generation 7 has begun"), "{why}");
        let path = dir.path().join(GENERATION);
        fs::create_dir(dir.path().join("index.7")).unwrap();
        let good = fs::read(&path).unwrap();
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 1;
            fs::write(&path, &bad).unwrap();
            let why = current(dir.path()).unwrap_err().to_string();
            let remedy = String::from_utf8_lossy(&good);
            assert!(why.contains(remedy.trim_end()), "{why}");
            Fence::new(dir.path(), 7, true).check().unwrap_err();
        }
        Fence::unshared(dir.path()).check().unwrap();
    }

    #[test]
    fn first_write_leaves_no_incomplete_file_and_later_ones_keep_the_file() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let (target, path) = (dir.path(), dir.path().join(GENERATION));
        // The temporary file cannot be made: nothing is left.
        let temporary = target.join(files::temporary_name(GENERATION));
        fs::create_dir(&temporary).unwrap();
        write(target, 0).unwrap_err();
        assert!(!path.exists());
        fs::remove_dir(&temporary).unwrap();
        write(target, 0).unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        write(target, 1).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
        assert_eq!(fs::read_dir(target).unwrap().count(), 1);
    }

    #[test]
    fn index_is_that_of_the_last_generation_that_has_one() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path();
        for name in ["index", "index.2", "index.new", "index.damaged-0"] {
            fs::create_dir(target.join(name)).unwrap();
        }
        assert_eq!(index_dir(target), target.join("index"));
        for (generation, name) in [(1, "index"), (2, "index.2"), (3, "index.2")] {
            write(target, generation).unwrap();
            assert_eq!(index_dir(target), target.join(name));
        }
        fs::write(target.join("lock"), "").unwrap();
        assert!(remove_earlier(target, 2).unwrap());
        assert!(!target.join("index").exists() && !target.join("lock").exists());
        assert_eq!(index_dir(target), target.join("index.2"));
    }
}
