//! Power loss on the machine of an OST: the disk loses data that was not synced, and the client
//! writes it again. A killed target process loses nothing either.
//!
//! The target is on a local file system in an image file. A copy of the image contains what a disk
//! would contain at that moment; to simulate a power loss, the test replaces the image by the copy.
//! The test then simulates the restart of the machine by another boot id in a mount namespace.
//!
//! The tests need root, loop devices and `/dev/fuse`, and fail without them.

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
/// Number of power losses. One shortly after a commit loses nothing.
const POWER_LOSSES: usize = 5;

/// A file system with an OST on a disk that can lose power.
struct Cluster {
    // Declared before the disk, so that its processes are stopped first.
    site: Site,
    disk: Disk,
    mount: String,
}

impl Cluster {
    fn new() -> Cluster {
        let disk = Disk::new("512M", "");
        // Data of the killed process must reach the image only by explicit sync.
        sh(&format!("mount -o remount,commit=300 {}", disk.root()));
        let mut site = Site::new();
        let mgs = format!("{NET}.1@tcp");
        let ost = disk.target("ost");
        let target_options = ["--fsname", "lus", "--mgsnode", &mgs];
        for (dir, host, mkfs) in [
            ("mgs", 1, vec!["--mgs"]),
            ("mdt", 2, [&["--mdt"], &target_options[..]].concat()),
            (
                &ost,
                3,
                [&["--ost", "--index", "0"], &target_options[..]].concat(),
            ),
        ] {
            site.serve(dir, &mkfs, &["--listen", &nid(host), "--port", PORT]);
        }
        let mount = site.mount(&format!("{mgs}:/lus"), "mnt", &["--port", PORT]);
        Cluster { site, disk, mount }
    }

    fn ost(&self) -> String {
        self.disk.target("ost")
    }

    /// Kills the target's process and starts the target again.
    fn kill(&self) {
        self.site.kill(&self.ost());
        nacre_ok(&["serve", &self.ost(), "--listen", &nid(3), "--port", PORT]);
    }

    /// Simulates a power loss and restart of the target's machine.
    fn lose_power(&self, run: usize) {
        self.site.kill(&self.ost());
        let (image, copy, at) = (
            self.disk.path_str("image"),
            self.disk.path_str("copy"),
            self.disk.root(),
        );
        sh(&format!(
            "cp --sparse=always {image} {copy} && umount --lazy {at} && mv {copy} {image} && \
             mount -o loop,commit=300 {image} {at}"
        ));
        let boot_id = self.site.path_str("boot_id");
        fs::write(&boot_id, format!("12345678-1234-1234-1234-{run:012}\n")).unwrap();
        let nacre = env!("CARGO_BIN_EXE_nacre");
        let (ost, nid) = (self.ost(), nid(3));
        sh(&format!(
            "unshare --mount bash -euc 'mount --bind {boot_id} /proc/sys/kernel/random/boot_id; \
             {nacre} serve {ost} --listen {nid} --port {PORT}'"
        ));
    }

    /// Creates a file with new data that is on the server, but not synced. The file stays open.
    fn write_unsynced(&self, name: &str) -> (File, Vec<u8>) {
        let data: Vec<u8> = sh("head -c 400000 /dev/urandom | base64").into_bytes();
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .open(Path::new(&self.mount).join(name))
            .unwrap();
        file.write_all(&data).unwrap();
        // Closing a duplicate descriptor writes the data to the server.
        drop(file.try_clone().unwrap());
        (file, data)
    }

    /// Whether the client has repeated requests after the last start of the target. In its mount
    /// namespace, the process has another boot id, so commands do not find it.
    fn has_repeated_requests(&self) -> bool {
        let log = fs::read_to_string(Path::new(&self.ost()).join("nacre.log")).unwrap();
        let status = log.lines().rfind(|line| line.contains("recovery complete"));
        !status.unwrap().contains("replayed_requests: 0,")
    }

    fn has_content(&self, name: &str, data: &[u8]) -> bool {
        fs::read(Path::new(&self.mount).join(name)).unwrap() == data
    }
}

fn nid(host: u8) -> String {
    format!("{NET}.{host}@tcp")
}

/// Whether fsync reports lost data.
fn fsync_reports_loss(file: &File) -> bool {
    match rustix::fs::fsync(file.as_fd()) {
        Ok(()) => false,
        Err(rustix::io::Errno::IO) => true,
        Err(e) => panic!("fsync: {e}"),
    }
}

#[test]
fn power_loss_and_process_death_lose_nothing() {
    let cluster = Cluster::new();
    let (synced, kept) = cluster.write_unsynced("synced");
    assert!(!fsync_reports_loss(&synced));

    let (file, data) = cluster.write_unsynced("killed");
    cluster.kill();
    assert!(!fsync_reports_loss(&file));
    assert!(cluster.has_content("killed", &data));

    let mut repeated = false;
    for run in 0..POWER_LOSSES {
        let name = format!("lost{run}");
        let (file, data) = cluster.write_unsynced(&name);
        let closed = format!("{name}.closed");
        let (_, closed_data) = cluster.write_unsynced(&closed);
        cluster.lose_power(run);
        assert!(!fsync_reports_loss(&file), "{name}");
        assert!(cluster.has_content(&name, &data), "{name}");
        assert!(cluster.has_content(&closed, &closed_data), "{closed}");
        repeated |= cluster.has_repeated_requests();
    }
    assert!(repeated, "no power loss lost data, so nothing was tested");
    assert!(cluster.has_content("synced", &kept) && cluster.has_content("killed", &data));
    assert!(!fsync_reports_loss(&synced));
    // Commands do not find the last process either.
    cluster.site.kill(&cluster.ost());
}
