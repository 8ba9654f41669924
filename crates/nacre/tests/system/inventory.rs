//! The complete visible state of a tree, for comparing two trees.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{lgetxattr, llistxattr};

/// The visible state of one file.
#[derive(Debug, PartialEq, Eq)]
struct FileState {
    mode: u32,
    owner: (u32, u32),
    /// Seconds and nanoseconds.
    mtime: (i64, i64),
    /// Size and hash of a file's contents, of a link's target, or of a character device's number.
    content: (u64, u64),
    /// The first of several names of the same file.
    same_as: Option<PathBuf>,
    xattrs: BTreeMap<String, Vec<u8>>,
}

/// Fails with the first difference between two trees.
pub(crate) fn assert_same(one: &str, other: &str) {
    let (one, other) = (inventory(Path::new(one)), inventory(Path::new(other)));
    assert!(one.len() > 100, "the tree is too small for a comparison");
    for (path, state) in &one {
        assert_eq!(Some(state), other.get(path), "{}", path.display());
    }
    let unexpected: Vec<&PathBuf> = other.keys().filter(|path| !one.contains_key(*path)).collect();
    assert!(unexpected.is_empty(), "unexpected files: {unexpected:?}");
}

fn inventory(root: &Path) -> BTreeMap<PathBuf, FileState> {
    let mut out = BTreeMap::new();
    let mut paths = vec![root.to_owned()];
    let mut directories = vec![root.to_owned()];
    while let Some(dir) = directories.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            }
            paths.push(entry.path());
        }
    }
    paths.sort();
    let mut first_names = BTreeMap::new();
    for path in paths {
        let name = path.strip_prefix(root).unwrap().to_owned();
        let mut state = file_state(&path);
        let meta = std::fs::symlink_metadata(&path).unwrap();
        if !meta.is_dir() && meta.nlink() > 1 {
            let first = first_names.entry(meta.ino()).or_insert_with(|| name.clone());
            state.same_as = Some(first.clone());
        }
        out.insert(name, state);
    }
    out
}

fn file_state(path: &Path) -> FileState {
    let meta = std::fs::symlink_metadata(path).unwrap();
    let kind = meta.file_type();
    let content = if kind.is_file() {
        std::fs::read(path).unwrap()
    } else if kind.is_symlink() {
        let target = std::fs::read_link(path).unwrap();
        target.as_os_str().as_encoded_bytes().to_vec()
    } else if kind.is_char_device() {
        meta.rdev().to_be_bytes().to_vec()
    } else {
        Vec::new()
    };
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    let size = if kind.is_file() {
        meta.len()
    } else {
        content.len() as u64
    };
    FileState {
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        mtime: (meta.mtime(), meta.mtime_nsec()),
        content: (size, hasher.finish()),
        same_as: None,
        xattrs: xattrs(path),
    }
}

fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 65536];
    let length = llistxattr(path, &mut names[..]).unwrap();
    let text = String::from_utf8(names[..length].to_vec()).unwrap();
    let value = |name: &str| {
        let mut value = vec![0; 65536];
        let length = lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(length);
        value
    };
    text.split('\0')
        .filter(|name| !name.is_empty())
        .map(|name| (name.to_owned(), value(name)))
        .collect()
}
