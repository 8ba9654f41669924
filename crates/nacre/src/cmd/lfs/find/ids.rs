//! FIDs and projects of files, from the process of their mount.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::super::{ask, relative_to_mount};
use crate::control::Request;
use crate::node_requests::InodeIds;
use crate::process::{self, MountRecord, ProcessRecord};

/// The process that knows the ids of the files at and below a path. Found at the first use, since
/// most searches need no ids.
pub(super) struct Ids<'a> {
    top: &'a Path,
    mount: OnceCell<Mount>,
}

/// A mount, its process, and the place of the top path in the mount.
struct Mount {
    process: ProcessRecord,
    mount: MountRecord,
    top: PathBuf,
}

impl<'a> Ids<'a> {
    pub(super) fn new(top: &'a Path) -> Ids<'a> {
        let mount = OnceCell::new();
        Ids { top, mount }
    }

    /// The ids of a file at or below the top path.
    pub(super) fn of(&self, path: &Path) -> Result<InodeIds> {
        let mount = match self.mount.get() {
            Some(mount) => mount,
            None => {
                let found = Mount::of(self.top)?;
                self.mount.get_or_init(|| found)
            }
        };
        let below = path.strip_prefix(self.top).unwrap_or(Path::new(""));
        let request = Request::Inodes {
            mountpoint: mount.mount.mountpoint.clone(),
            // `join` with an empty path would append a slash, which only a directory may have.
            paths: vec![match below.as_os_str().is_empty() {
                true => mount.top.clone(),
                false => mount.top.join(below),
            }],
        };
        let mut ids: Vec<InodeIds> = ask(&mount.process, &request)?;
        ids.pop()
            .with_context(|| format!("{}: the process of the mount sent no ids", path.display()))
    }
}

impl Mount {
    fn of(top: &Path) -> Result<Mount> {
        let is_link = std::fs::symlink_metadata(top).is_ok_and(|meta| meta.is_symlink());
        // Follow links in the parent directories, but not a link at the end of the path.
        let (dir, name) = match (is_link, top.file_name()) {
            (true, Some(name)) => (top.parent().unwrap_or(Path::new("")), name),
            _ => (top, "".as_ref()),
        };
        let dir = if dir.as_os_str().is_empty() {
            Path::new(".")
        } else {
            dir
        };
        let (process, mount) = process::by_path(dir)?;
        let mut top = relative_to_mount(dir, &mount)?;
        if is_link {
            top.push(name);
        }
        Ok(Mount { process, mount, top })
    }
}
