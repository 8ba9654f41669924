//! The documents in the package `nacre` and in the tarball, below `share/doc/nacre`. They keep
//! their paths in the repository, so that their links work.

use std::path::{Path, PathBuf};

use super::files_in;
use crate::stage::root;

/// Directories of documents, and files to which documents link.
const DIRS: [&str; 5] = [
    "docs",
    "docs/decisions",
    "docs/manual",
    "docs/monitoring",
    "packaging/container",
];
/// Single files to which documents link.
const FILES: [&str; 3] = [
    "crates/capi/examples/mpi/nacre_mpi.c",
    "crates/capi/include/nacre.h",
    "crates/python/examples/data_loader.py",
];

/// The documents, as paths in the repository.
pub(super) fn all() -> Result<Vec<PathBuf>, String> {
    let mut found: Vec<PathBuf> = FILES.iter().map(PathBuf::from).collect();
    for dir in DIRS {
        let files = files_in(&root().join(dir))?
            .into_iter()
            .filter(|path| path.is_file());
        found.extend(files.map(|path| Path::new(dir).join(path.file_name().unwrap_or_default())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{DIRS, FILES, all};
    use crate::stage::root;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Component, PathBuf};

    /// The file to which a link of a page leads, as a path in the repository.
    fn target_of(page: &std::path::Path, link: &str) -> PathBuf {
        let mut target = page.parent().unwrap().to_owned();
        for part in PathBuf::from(link).components() {
            match part {
                Component::ParentDir => assert!(target.pop(), "{}: {link}", page.display()),
                part => target.push(part),
            }
        }
        target
    }

    #[test]
    fn links_of_packaged_documents_lead_to_packaged_files() {
        let packaged: BTreeSet<PathBuf> = all().unwrap().into_iter().collect();
        let mut dead = Vec::new();
        for page in packaged
            .iter()
            .filter(|path| path.extension().is_some_and(|e| e == "md"))
        {
            let text = fs::read_to_string(root().join(page)).unwrap();
            for (i, _) in text.match_indices("](") {
                let link = text[i + 2..].split([')', '#']).next().unwrap_or_default();
                if link.is_empty() || link.contains("://") {
                    continue;
                }
                if !packaged.contains(&target_of(page, link)) {
                    dead.push(format!("{}: {link}", page.display()));
                }
            }
        }
        assert!(dead.is_empty(), "{dead:#?}");
    }

    #[test]
    fn package_nacre_has_all_documents() {
        let manifest = fs::read_to_string(root().join("crates/nacre/Cargo.toml")).unwrap();
        let files = FILES.iter().map(|file| {
            let (dir, _) = file.rsplit_once('/').unwrap();
            ((*file).to_owned(), dir.to_owned())
        });
        let dirs = DIRS.iter().map(|dir| (format!("{dir}/*"), (*dir).to_owned()));
        for (from, to) in files.chain(dirs) {
            let asset = format!("[\"../../{from}\", \"usr/share/doc/nacre/{to}/\", \"644\"]");
            assert!(manifest.contains(&asset), "crates/nacre/Cargo.toml lacks {asset}");
        }
    }
}
