//! The machine of an OST loses power: what `fsync` returned for is there, and of what is lost `fsync` says so. A target that
//! was only killed has lost nothing.
//!
//! The target is on a local file system in an image. What the image holds at a moment is what a disk would: a copy of it is
//! what is there after a loss of power. The machine's next run is one with another boot id, in a mount namespace.
//!
//! It needs root, loop devices and `/dev/fuse`, and fails where those are missing.

#![allow(clippy::unwrap_used)]

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::fd::AsFd,
    path::Path,
};

use crate::fixture::{Site, nacre_ok, sh};
use crate::limits::disk::Disk;

const NET: &str = "127.0.90";
const PORT: &str = "17990";
/// An unlucky moment, shortly after a commit, loses nothing.
const TRIES: usize = 10;

struct Cluster {
    // Before the disk: what is on it is stopped first.
    site: Site,
    disk: Disk,
    at: String,
}

impl Cluster {
    fn new() -> Cluster {
        let disk = Disk::new("512M", "");
        // What the killed process left comes to the image only when it is synced, not by itself.
        sh(&format!("mount -o remount,commit=300 {}", disk.root()));
        let mut site = Site::new();
        let mgs = format!("{NET}.1@tcp");
        let ost = disk.target("ost");
        let of_fs = ["--fsname", "lus", "--mgsnode", &mgs];
        for (dir, host, mkfs) in [
            ("mgs", 1, vec!["--mgs"]),
            ("mdt", 2, [&["--mdt"], &of_fs[..]].concat()),
            (&ost, 3, [&["--ost", "--index", "0"], &of_fs[..]].concat()),
        ] {
            site.serve(dir, &mkfs, &["--listen", &nid(host), "--port", PORT]);
        }
        let at = site.mount(&format!("{mgs}:/lus"), "mnt", &["--port", PORT]);
        Cluster { site, disk, at }
    }

    fn ost(&self) -> String {
        self.disk.target("ost")
    }

    /// The target's process is killed, and started again.
    fn kill(&self) {
        self.site.kill(&self.ost());
        nacre_ok(&["serve", &self.ost(), "--listen", &nid(3), "--port", PORT]);
    }

    /// The target's machine stops, and runs again.
    fn lose_power(&self, run: usize) {
        self.site.kill(&self.ost());
        let (image, copy, at) = (self.disk.at("image"), self.disk.at("copy"), self.disk.root());
        sh(&format!(
            "cp --sparse=always {image} {copy} && umount --lazy {at} && mv {copy} {image} && \
             mount -o loop,commit=300 {image} {at}"
        ));
        let boot_id = self.site.at("boot_id");
        fs::write(&boot_id, format!("12345678-1234-1234-1234-{run:012}\n")).unwrap();
        let nacre = env!("CARGO_BIN_EXE_nacre");
        let (ost, nid) = (self.ost(), nid(3));
        sh(&format!(
            "unshare --mount bash -euc 'mount --bind {boot_id} /proc/sys/kernel/random/boot_id; \
             {nacre} serve {ost} --listen {nid} --port {PORT}'"
        ));
    }

    /// A file with new contents, which are at the server, but not synced; still open.
    fn written(&self, name: &str) -> (File, Vec<u8>) {
        let data: Vec<u8> = sh("head -c 400000 /dev/urandom | base64").into_bytes();
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .open(Path::new(&self.at).join(name))
            .unwrap();
        file.write_all(&data).unwrap();
        // A close writes back.
        drop(file.try_clone().unwrap());
        (file, data)
    }

    fn holds(&self, name: &str, data: &[u8]) -> bool {
        fs::read(Path::new(&self.at).join(name)).unwrap() == data
    }
}

fn nid(host: u8) -> String {
    format!("{NET}.{host}@tcp")
}

/// Whether fsync says that data was lost.
fn says_lost(file: &File) -> bool {
    match rustix::fs::fsync(file.as_fd()) {
        Ok(()) => false,
        Err(rustix::io::Errno::IO) => true,
        Err(e) => panic!("fsync: {e}"),
    }
}

#[test]
fn what_is_lost_with_the_power_is_told_of_and_nothing_with_the_process() {
    let cluster = Cluster::new();
    let (synced, kept) = cluster.written("synced");
    assert!(!says_lost(&synced));

    let (file, data) = cluster.written("killed");
    cluster.kill();
    assert!(!says_lost(&file), "what a killed target has answered is there");
    assert!(cluster.holds("killed", &data));

    let lost = (0..TRIES).find(|run| {
        let name = format!("lost{run}");
        let (open, data) = cluster.written(&name);
        let closed = format!("{name}.closed");
        let (_, more) = cluster.written(&closed);
        cluster.lose_power(*run);
        let told = says_lost(&open);
        assert_eq!(told, !cluster.holds(&name, &data), "{name}");
        assert_eq!(
            says_lost(&open),
            told,
            "a descriptor that lost data fails for good"
        );
        let later = File::open(Path::new(&cluster.at).join(&closed)).unwrap();
        assert_eq!(says_lost(&later), !cluster.holds(&closed, &more), "{closed}");
        told
    });
    assert!(lost.is_some(), "nothing was ever lost: the test shows nothing");
    assert!(cluster.holds("synced", &kept) && cluster.holds("killed", &data));
    assert!(!says_lost(&synced));
}
