//! A target's directory: what `mkfs` leaves in it, and what keeps two servers from opening it at once.
//!
//! `target` is a small text file, one `name = value` a line, written last when a target is made, so that a
//! directory without it but with `target.new` is known to be half made. `lock` is held (flock) by the server that
//! runs on it: a lock of the kernel's, so that it is gone when the process is, however it ends. The format is
//! described in `docs/on-disk-format.md`.

use std::{
    fmt, fs,
    io::{self, Write},
    path::{Path, PathBuf},
    str::FromStr,
};

use rustix::fs::{FlockOperation, flock};
use wire::Nid;

use crate::files;

/// The on-disk format that this version writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;

pub(crate) const LABEL: &str = "target";
pub(crate) const LABEL_NEW: &str = "target.new";
pub(crate) const LABEL_DESTROYED: &str = "target.destroyed";
pub(crate) const LOCK: &str = "lock";
/// Directory of the index, in a target's directory.
pub(crate) const INDEX: &str = "index";
/// Directory of the objects, in an object target's directory.
pub(crate) const OBJECTS: &str = "objects";
const LABEL_MAX_BYTES: u64 = 64 << 10;

/// What kind of target it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TargetKind {
    /// Management target.
    Mgs,
    /// Metadata target.
    Mdt,
    /// Object target.
    Ost,
}

/// What a target is, as `mkfs` wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetLabel {
    /// Format of the whole directory.
    pub format_version: u32,
    /// Its kind.
    pub kind: TargetKind,
    /// The file system that it is part of; empty for a management target.
    pub fsname: String,
    /// Its index among the targets of its kind.
    pub index: u32,
    /// A number of this very target's own, so that a restored or swapped directory is noticed.
    pub uuid: String,
    /// Where the management server is.
    pub mgsnode: Vec<Nid>,
    /// Where it may be served, in order of preference; empty: where it is started.
    pub service_nodes: Vec<Nid>,
    /// Parameters given to `mkfs`, in order: `name=value`.
    pub params: Vec<(String, String)>,
}

/// Why a target's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// There is nothing of ours.
    #[error("{}: not a Nacre target (no file 'target' in it): make one with 'nacre mkfs'", .0.display())]
    NotATarget(PathBuf),
    /// No such directory.
    #[error("{}: no such directory", .0.display())]
    NoDirectory(PathBuf),
    /// The directory holds other things.
    #[error("{}: not empty and not a Nacre target: '{found}' is in it; choose an empty or new directory", path.display())]
    WrongDirectory {
        /// The directory.
        path: PathBuf,
        /// Something in it.
        found: String,
    },
    /// Making it was interrupted.
    #[error("{}: half-made target (its mkfs did not finish): remove the directory and make it again", .0.display())]
    HalfMade(PathBuf),
    /// Its deletion was interrupted.
    #[error("{}: half-deleted target: finish that with 'nacre destroy'", .0.display())]
    HalfDestroyed(PathBuf),
    /// There is a target already.
    #[error("{}: there is a target already ({svname}); remove the directory to make a new one", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
        /// The target that is there.
        svname: String,
    },
    /// A later version wrote it.
    #[error("{}: store of format {found}, this version knows formats up to {FORMAT_VERSION}: use the version of Nacre that made it, or a newer one", path.display())]
    NewerFormat {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// A server runs on it.
    #[error("{}: in use by another process{}", path.display(), by.as_deref().map(|p| format!(" ({p})")).unwrap_or_default())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that holds it, as it wrote itself into the lock file.
        by: Option<String>,
    },
    /// The label does not parse.
    #[error("{}: bad label: line {line}: {why}", path.display())]
    BadLabel {
        /// The label file.
        path: PathBuf,
        /// The line's number; 0: the whole file.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A target's directory, locked: no other server opens it while this lives.
#[derive(Debug)]
pub struct TargetDir {
    path: PathBuf,
    label: TargetLabel,
    _lock: fs::File,
}

impl fmt::Display for TargetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TargetKind::Mgs => "mgs",
            TargetKind::Mdt => "mdt",
            TargetKind::Ost => "ost",
        })
    }
}

impl FromStr for TargetKind {
    type Err = String;
    fn from_str(s: &str) -> Result<TargetKind, String> {
        match s {
            "mgs" => Ok(TargetKind::Mgs),
            "mdt" => Ok(TargetKind::Mdt),
            "ost" => Ok(TargetKind::Ost),
            _ => Err(format!("kind is mgs, mdt or ost, not '{s}'")),
        }
    }
}

impl TargetLabel {
    /// A new target's label. `uuid` is to be unique.
    pub fn new(kind: TargetKind, fsname: &str, index: u32, uuid: &str) -> TargetLabel {
        TargetLabel {
            format_version: FORMAT_VERSION,
            kind,
            fsname: fsname.into(),
            index,
            uuid: uuid.into(),
            mgsnode: Vec::new(),
            service_nodes: Vec::new(),
            params: Vec::new(),
        }
    }

    /// Its name, as Lustre has it: `MGS`, `testfs-MDT0000`, `testfs-OST000a`.
    pub fn svname(&self) -> String {
        match self.kind {
            TargetKind::Mgs => "MGS".into(),
            TargetKind::Mdt => format!("{}-MDT{:04x}", self.fsname, self.index),
            TargetKind::Ost => format!("{}-OST{:04x}", self.fsname, self.index),
        }
    }

    fn to_text(&self) -> String {
        let nids = |v: &[Nid]| v.iter().map(Nid::to_string).collect::<Vec<_>>().join(",");
        let mut t = format!(
            "# A Nacre target. Written by 'nacre mkfs'; do not edit while it is served.\n\
             format_version = {}\nkind = {}\nfsname = {}\nindex = {}\nuuid = {}\nmgsnode = {}\nservice_nodes = {}\n",
            self.format_version,
            self.kind,
            self.fsname,
            self.index,
            self.uuid,
            nids(&self.mgsnode),
            nids(&self.service_nodes),
        );
        for (name, value) in &self.params {
            t.push_str(&format!("param = {name}={value}\n"));
        }
        t
    }

    fn from_text(dir: &Path, text: &str) -> Result<TargetLabel, TargetError> {
        let path = dir.join(LABEL);
        let bad = |line: usize, why: String| TargetError::BadLabel {
            path: path.clone(),
            line,
            why,
        };
        let mut label = TargetLabel::new(TargetKind::Mgs, "", 0, "");
        label.format_version = 0;
        let mut kind = None;
        for (n, line) in text.lines().enumerate().map(|(i, l)| (i + 1, l.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, value) = line
                .split_once('=')
                .ok_or_else(|| bad(n, format!("expected 'name = value', found '{line}'")))?;
            let value = value.trim();
            let number = || {
                value
                    .parse::<u32>()
                    .map_err(|e| bad(n, format!("'{value}': {e}")))
            };
            let nids = || -> Result<Vec<Nid>, TargetError> {
                let each = value.split(',').map(str::trim).filter(|s| !s.is_empty());
                each.map(|s| s.parse().map_err(|_| bad(n, format!("'{s}' is not a NID"))))
                    .collect()
            };
            match name.trim() {
                "format_version" => {
                    label.format_version = number()?;
                    if label.format_version > FORMAT_VERSION {
                        return Err(TargetError::NewerFormat {
                            path: dir.into(),
                            found: label.format_version,
                        });
                    }
                }
                "kind" => kind = Some(value.parse().map_err(|why| bad(n, why))?),
                "fsname" => label.fsname = value.into(),
                "index" => label.index = number()?,
                "uuid" => label.uuid = value.into(),
                "mgsnode" => label.mgsnode = nids()?,
                "service_nodes" => label.service_nodes = nids()?,
                "param" => {
                    let (p, v) = value
                        .split_once('=')
                        .ok_or_else(|| bad(n, format!("expected 'param = name=value', found '{line}'")))?;
                    label.params.push((p.trim().into(), v.trim().into()));
                }
                other => return Err(bad(n, format!("unknown name '{other}'"))),
            }
        }
        if label.format_version == 0 {
            return Err(bad(0, "no format_version".into()));
        }
        label.kind = kind.ok_or_else(|| bad(0, "no kind".into()))?;
        Ok(label)
    }
}

impl TargetDir {
    /// Makes a target in `path`, which is made too, or is empty. `fill` puts into the directory what the target
    /// needs from the start; only when it is done and on disk does the directory become a target.
    pub fn create(
        path: &Path,
        label: &TargetLabel,
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<TargetDir, TargetError> {
        let io = |p: &Path| {
            let path = p.to_path_buf();
            move |source| TargetError::Io { path, source }
        };
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(io(parent))?;
        }
        if !path.is_dir() {
            files::create_dir(path).map_err(io(path))?;
        }
        match TargetLabel::read(path) {
            Ok(old) => {
                return Err(TargetError::Exists {
                    path: path.into(),
                    svname: old.svname(),
                });
            }
            Err(TargetError::NotATarget(_)) => {}
            Err(e) => return Err(e),
        }
        if let Some(entry) = fs::read_dir(path).map_err(io(path))?.next() {
            let found = entry
                .map_err(io(path))?
                .file_name()
                .to_string_lossy()
                .into_owned();
            return Err(TargetError::WrongDirectory {
                path: path.into(),
                found,
            });
        }
        // From here on the directory is known as half made, until the rename.
        let new = path.join(LABEL_NEW);
        let mut file = files::options()
            .write(true)
            .create_new(true)
            .open(&new)
            .map_err(io(&new))?;
        let lock = lock(path)?;
        files::restrict(path).map_err(io(path))?;
        file.write_all(label.to_text().as_bytes()).map_err(io(&new))?;
        fill(path).map_err(io(path))?;
        file.sync_all().map_err(io(&new))?;
        fs::rename(&new, path.join(LABEL)).map_err(io(&new))?;
        files::sync_dir(path).map_err(io(path))?;
        let parent = files::parent(path);
        files::sync_dir(&parent).map_err(io(&parent))?;
        Ok(TargetDir {
            path: path.into(),
            label: label.clone(),
            _lock: lock,
        })
    }

    /// Opens a target that `create` made, for this process alone.
    pub fn open(path: &Path) -> Result<TargetDir, TargetError> {
        let label = TargetLabel::read(path)?;
        let lock = lock(path)?;
        Ok(TargetDir {
            path: path.into(),
            label,
            _lock: lock,
        })
    }

    /// Takes the permissions of other users from what is in the directory, if they have any; how many files and
    /// directories that were. Files of objects are not visited, since there can be millions: the directories above them
    /// are, and nobody gets past a directory of mode 0700.
    pub fn restrict(&self) -> Result<u64, TargetError> {
        let restrict = || -> io::Result<u64> {
            let mut changed = u64::from(files::restrict(&self.path)?);
            changed += files::restrict_below(&self.path, 0, true)?;
            for (dir, depth, with_files) in [(INDEX, usize::MAX, true), (OBJECTS, 2, false)] {
                let dir = self.path.join(dir);
                changed += u64::from(files::restrict(&dir)?);
                changed += files::restrict_below(&dir, depth, with_files)?;
            }
            Ok(changed)
        };
        restrict().map_err(|source| TargetError::Io {
            path: self.path.clone(),
            source,
        })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is.
    pub fn label(&self) -> &TargetLabel {
        &self.label
    }
}

impl TargetLabel {
    /// Reads the label of a target that may be in use.
    pub fn read(path: &Path) -> Result<TargetLabel, TargetError> {
        if !path.is_dir() {
            return Err(TargetError::NoDirectory(path.into()));
        }
        let file = path.join(LABEL);
        let text = match fs::metadata(&file) {
            Ok(m) if m.len() > LABEL_MAX_BYTES => {
                let why = format!("{} bytes long, expected at most {LABEL_MAX_BYTES}", m.len());
                return Err(TargetError::BadLabel {
                    path: file,
                    line: 0,
                    why,
                });
            }
            Ok(_) => fs::read_to_string(&file).map_err(|source| TargetError::Io { path: file, source })?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(if path.join(LABEL_NEW).exists() {
                    TargetError::HalfMade(path.into())
                } else if path.join(LABEL_DESTROYED).exists() {
                    TargetError::HalfDestroyed(path.into())
                } else {
                    TargetError::NotATarget(path.into())
                });
            }
            Err(source) => return Err(TargetError::Io { path: file, source }),
        };
        TargetLabel::from_text(path, &text)
    }
}

/// Takes the directory's lock and writes this process's number into it, for whoever finds it taken.
pub(crate) fn lock(dir: &Path) -> Result<fs::File, TargetError> {
    let path = dir.join(LOCK);
    let io = |source| TargetError::Io {
        path: path.clone(),
        source,
    };
    let mut file = files::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .map_err(io)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let by = fs::read_to_string(&path)
                .ok()
                .map(|s| s.trim().to_owned())
                .filter(|s| !s.is_empty());
            return Err(TargetError::InUse { path: dir.into(), by });
        }
        Err(e) => return Err(io(e.into())),
    }
    file.set_len(0)
        .and_then(|()| writeln!(file, "pid {}", std::process::id()))
        .map_err(io)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn label() -> TargetLabel {
        let mut l = TargetLabel::new(TargetKind::Ost, "testfs", 10, "0123abcd");
        l.mgsnode = vec!["10.0.0.1@tcp".parse().unwrap(), "10.0.0.2@tcp3".parse().unwrap()];
        l.params = vec![("ost.brw_size".into(), "4".into())];
        l
    }

    fn no_fill(_: &Path) -> io::Result<()> {
        Ok(())
    }

    #[test]
    fn a_label_is_read_back_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/ost");
        drop(TargetDir::create(&path, &label(), no_fill).unwrap());
        let t = TargetDir::open(&path).unwrap();
        assert_eq!(t.label(), &label());
        assert_eq!(t.label().svname(), "testfs-OST000a");
    }

    #[test]
    fn a_target_is_opened_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let first = TargetDir::create(&path, &label(), no_fill).unwrap();
        let e = TargetDir::open(&path).unwrap_err();
        assert!(
            matches!(&e, TargetError::InUse { by: Some(p), .. } if p.starts_with("pid ")),
            "{e}"
        );
        drop(first);
        TargetDir::open(&path).unwrap();
    }

    #[test]
    fn a_half_made_target_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        TargetDir::create(&path, &label(), |_| Err(io::Error::other("killed"))).unwrap_err();
        assert!(matches!(TargetDir::open(&path), Err(TargetError::HalfMade(_))));
        assert!(matches!(
            TargetDir::create(&path, &label(), no_fill),
            Err(TargetError::HalfMade(_))
        ));
    }

    #[test]
    fn other_directories_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(
            TargetDir::open(&dir.path().join("none")),
            Err(TargetError::NoDirectory(_))
        ));
        assert!(matches!(
            TargetDir::open(dir.path()),
            Err(TargetError::NotATarget(_))
        ));
        fs::write(dir.path().join("photo.jpg"), b"x").unwrap();
        let e = TargetDir::create(dir.path(), &label(), no_fill).unwrap_err();
        assert!(
            matches!(&e, TargetError::WrongDirectory { found, .. } if found == "photo.jpg"),
            "{e}"
        );
    }

    #[test]
    fn a_newer_format_and_a_bad_label_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        drop(TargetDir::create(&path, &label(), no_fill).unwrap());
        let newer = label()
            .to_text()
            .replace("format_version = 1", "format_version = 7\nlater = thing");
        fs::write(path.join("target"), newer).unwrap();
        assert!(matches!(
            TargetDir::open(&path),
            Err(TargetError::NewerFormat { found: 7, .. })
        ));
        for bad in [
            "",
            "kind = ost",
            "format_version = 1",
            "format_version = 1\nkind = x",
            "format_version",
        ] {
            fs::write(path.join("target"), bad).unwrap();
            assert!(
                matches!(TargetDir::open(&path), Err(TargetError::BadLabel { .. })),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_target_is_not_made_over_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        drop(TargetDir::create(&path, &label(), no_fill).unwrap());
        let e = TargetDir::create(&path, &label(), no_fill).unwrap_err();
        assert!(
            matches!(&e, TargetError::Exists { svname, .. } if svname == "testfs-OST000a"),
            "{e}"
        );
    }
}
