//! A small local file system for a target to be on: an image file, mounted through a loop device.

use crate::fixture::{is_root, sh};

/// A mounted ext4 in a sparse file. It is to be made before the site whose targets are on it, so that it goes after them.
pub(crate) struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    /// So large, with these options of mkfs.ext4.
    pub(crate) fn new(size: &str, options: &str) -> Disk {
        assert!(is_root(), "these tests mount small file systems: they need root");
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk { dir };
        let (image, at) = (disk.at("image"), disk.root());
        sh(&format!(
            "truncate -s {size} {image} && mkfs.ext4 -q -m 0 -E lazy_itable_init=1 {options} {image} && \
             mkdir {at} && mount -o loop {image} {at}"
        ));
        disk
    }

    pub(crate) fn at(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// A directory for a target on it.
    pub(crate) fn target(&self, name: &str) -> String {
        format!("{}/{name}", self.root())
    }

    /// Where it is mounted.
    pub(crate) fn root(&self) -> String {
        self.at("at")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .args(["--lazy", &self.root()])
            .output();
    }
}
