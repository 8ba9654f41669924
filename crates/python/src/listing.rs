//! Directory listings: names alone, or names with attributes. A few requests look up the attributes
//! for a whole chunk of names.

use crate::errors;
use crate::fs::stat_path;
use crate::mounted::{State, StateRef};
use crate::stat::{StatResult, seconds};
use client::Attr;
use posix::files;
use pyo3::prelude::{PyResult, Python, pyclass, pymethods};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use wire::Errno;

/// An entry of a directory with the attributes of its file, as the listing found them. The methods
/// are those of `os.DirEntry`. They send a request only to follow a symbolic link.
#[pyclass(frozen, module = "nacre")]
pub(crate) struct DirEntry {
    state: StateRef,
    /// The name.
    #[pyo3(get)]
    name: OsString,
    path: PathBuf,
    attr: Attr,
}

/// The type of a file in its mode.
fn kind(mode: u32) -> u32 {
    mode & libc::S_IFMT
}

impl DirEntry {
    pub(crate) fn new(state: &StateRef, name: OsString, path: PathBuf, attr: Attr) -> DirEntry {
        DirEntry {
            state: state.share(),
            name,
            path,
            attr,
        }
    }

    /// The attributes of the file, or of a symbolic link's target.
    fn attr(&self, py: Python<'_>, follow: bool) -> PyResult<Result<Attr, Errno>> {
        match follow && self.is_symlink() {
            true => stat_path(&self.state, py, &self.path, true),
            false => Ok(Ok(self.attr.clone())),
        }
    }

    /// Whether the file has this type. A symbolic link whose target is missing has no type.
    fn is_kind(&self, py: Python<'_>, follow: bool, wanted: u32) -> PyResult<bool> {
        match self.attr(py, follow)? {
            Ok(attr) => Ok(kind(attr.mode) == wanted),
            Err(Errno::ENOENT) => Ok(false),
            Err(e) => Err(errors::of_path(e, &self.path)),
        }
    }
}

#[pymethods]
impl DirEntry {
    /// The path: that of the directory, and the name.
    #[getter]
    fn path(&self) -> &OsStr {
        self.path.as_os_str()
    }

    /// Size in bytes.
    #[getter]
    fn size(&self) -> u64 {
        self.attr.size
    }

    /// Time of the last change of the data, in seconds.
    #[getter]
    fn mtime(&self) -> f64 {
        seconds(self.attr.mtime)
    }

    fn __fspath__(&self) -> &OsStr {
        self.path()
    }

    /// The inode number.
    fn inode(&self) -> u64 {
        self.attr.fid.flatten()
    }

    /// Whether this is a directory, or a symbolic link to one.
    #[pyo3(signature = (*, follow_symlinks = true))]
    fn is_dir(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<bool> {
        self.is_kind(py, follow_symlinks, libc::S_IFDIR)
    }

    /// Whether this is a regular file, or a symbolic link to one.
    #[pyo3(signature = (*, follow_symlinks = true))]
    fn is_file(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<bool> {
        self.is_kind(py, follow_symlinks, libc::S_IFREG)
    }

    /// Whether this is a symbolic link.
    fn is_symlink(&self) -> bool {
        kind(self.attr.mode) == libc::S_IFLNK
    }

    /// The attributes of the file, or of a symbolic link's target.
    #[pyo3(signature = (*, follow_symlinks = true))]
    fn stat(&self, py: Python<'_>, follow_symlinks: bool) -> PyResult<StatResult> {
        let attr = self.attr(py, follow_symlinks)?;
        attr.map(StatResult).map_err(|e| errors::of_path(e, &self.path))
    }

    fn __repr__(&self) -> String {
        format!("<nacre.DirEntry {:?}>", self.name)
    }
}

/// Calls `found` for each chunk of a directory's entries, with the directory's FID and the raw
/// names without `.` and `..`.
async fn for_each_chunk(
    state: &State,
    path: &[u8],
    mut found: impl AsyncFnMut(wire::Fid, &[&[u8]]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let open = files::open(state, path, flags, 0, bytes::Bytes::new()).await?;
    let dir = open.dir()?;
    loop {
        let items = dir.next_many(state).await?;
        if items.is_empty() {
            return Ok(());
        }
        let names = items.iter().map(|item| &item.entry.name[..]);
        let names: Vec<&[u8]> = names.filter(|name| ![&b"."[..], b".."].contains(name)).collect();
        found(open.fid(), &names).await?;
    }
}

/// The names in a directory.
pub(crate) async fn names(state: &State, path: &[u8]) -> Result<Vec<OsString>, Errno> {
    let mut all = Vec::new();
    for_each_chunk(state, path, async |_, names| {
        all.extend(names.iter().map(|name| OsStr::from_bytes(name).to_owned()));
        Ok(())
    })
    .await?;
    Ok(all)
}

/// The names in a directory with the attributes of the files. Leaves out names that another program
/// removes meanwhile.
pub(crate) async fn entries(state: &State, path: &[u8]) -> Result<Vec<(OsString, Attr)>, Errno> {
    let mut all = Vec::new();
    for_each_chunk(state, path, async |dir, names| {
        state.client.lookup_batch(&state.cred, dir, names).await;
        for name in names {
            match state.client.lookup(&state.cred, dir, name).await {
                Ok(found) => all.push((OsStr::from_bytes(name).to_owned(), found.attr.clone())),
                Err(Errno::ENOENT) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    })
    .await?;
    Ok(all)
}
