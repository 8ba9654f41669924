//! A small local file system for a target: an image file, mounted through a loop device.

use crate::fixture::{is_root, sh};

/// A mounted ext4 file system in a sparse file. Create it before the [`crate::fixture::Site`] of
/// its targets, so that it is dropped after that site.
pub(crate) struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    /// Creates the file system with this size and options of mkfs.ext4.
    pub(crate) fn new(size: &str, options: &str) -> Disk {
        assert!(is_root(), "these tests mount small file systems: they need root");
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk { dir };
        let (image, at) = (disk.path_str("image"), disk.root());
        sh(&format!(
            "truncate -s {size} {image} && mkfs.ext4 -q -m 0 -E lazy_itable_init=1 {options} {image} && \
             mkdir {at} && mount -o loop {image} {at}"
        ));
        disk
    }

    pub(crate) fn path_str(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Path of a target's directory on the disk.
    pub(crate) fn target(&self, name: &str) -> String {
        format!("{}/{name}", self.root())
    }

    /// The mount point.
    pub(crate) fn root(&self) -> String {
        self.path_str("at")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .args(["--lazy", &self.root()])
            .output();
    }
}
