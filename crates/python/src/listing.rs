//! Directory listings: names alone, or with attributes, which few requests look up for a whole
//! chunk of names.

use crate::mounted::State;
use crate::stat::{StatResult, seconds};
use client::Attr;
use posix::files;
use pyo3::prelude::{Py, PyResult, Python, pyclass, pymethods};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use wire::Errno;

/// An entry of a directory with the attributes of its file, as the listing found them. The methods
/// have the names of those of `os.DirEntry`, without the option `follow_symlinks`: they describe a
/// symbolic link itself.
#[pyclass(frozen, module = "nacre")]
pub(crate) struct DirEntry {
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

    fn inode(&self) -> u64 {
        self.attr.fid.flatten()
    }

    fn is_dir(&self) -> bool {
        kind(self.attr.mode) == libc::S_IFDIR
    }

    fn is_file(&self) -> bool {
        kind(self.attr.mode) == libc::S_IFREG
    }

    fn is_symlink(&self) -> bool {
        kind(self.attr.mode) == libc::S_IFLNK
    }

    fn stat(&self, py: Python<'_>) -> PyResult<Py<StatResult>> {
        Py::new(py, StatResult(self.attr.clone()))
    }

    fn __repr__(&self) -> String {
        format!("<nacre.DirEntry {:?}>", self.name)
    }
}

/// Calls `found` with the raw name of each entry of a directory but `.` and `..`, in chunks.
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

/// The entries of a directory with attributes. Leaves out names that another program removes
/// meanwhile.
pub(crate) async fn entries(state: &State, path: &[u8]) -> Result<Vec<DirEntry>, Errno> {
    let mut all = Vec::new();
    let dir_path = PathBuf::from(OsStr::from_bytes(path));
    for_each_chunk(state, path, async |dir, names| {
        state.client.lookup_batch(&state.cred, dir, names).await;
        for name in names {
            match state.client.lookup(&state.cred, dir, name).await {
                Ok(found) => all.push(DirEntry {
                    name: OsStr::from_bytes(name).to_owned(),
                    path: dir_path.join(OsStr::from_bytes(name)),
                    attr: found.attr.clone(),
                }),
                Err(Errno::ENOENT) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    })
    .await?;
    Ok(all)
}
