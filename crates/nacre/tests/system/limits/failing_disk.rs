//! A disk of an OST fails writes: the kernel reports `EIO`, and reads go on.

use std::thread::sleep;
use std::time::Duration;

use super::disk::Disk;
use super::{Servers, assert_fails, wait_until};
use crate::fixture::{Site, is_root, nacre, nacre_ok, sh};

/// An ext4 file system in a sparse file on a tmpfs. While the tmpfs is full, the disk below ext4
/// fails all writes to new blocks.
struct FailingDisk(tempfile::TempDir);

impl FailingDisk {
    fn new() -> FailingDisk {
        assert!(is_root(), "this test mounts file systems: it needs root");
        let disk = FailingDisk(tempfile::tempdir().unwrap());
        let dir = disk.dir();
        sh(&format!(
            "cd {dir} && mkdir below at && mount -t tmpfs -o size=300M none below && \
             truncate -s 1G below/image && mkfs.ext4 -q -m 0 -E lazy_itable_init=1 below/image"
        ));
        disk.mount();
        disk
    }

    fn dir(&self) -> String {
        self.0.path().to_str().unwrap().to_owned()
    }

    fn mount(&self) {
        sh(&format!("cd {} && mount -o loop below/image at", self.dir()));
    }

    /// Makes the disk fail.
    fn fail(&self) {
        sh(&format!(
            "cat /dev/zero > {}/below/fill 2> /dev/null || true",
            self.dir()
        ));
    }

    /// Repairs the disk, which no process may use.
    fn repair(&self) {
        sh(&format!("cd {} && umount at && rm below/fill", self.dir()));
        self.mount();
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        for part in ["at", "below"] {
            let _ = std::process::Command::new("umount")
                .args(["--lazy", &format!("{}/{part}", self.dir())])
                .output();
        }
    }
}

#[test]
fn ost_with_a_failing_disk_gets_no_new_files_until_its_repair() {
    // Both OSTs have about the same free space, so that new files take turns.
    let (disk, other) = (FailingDisk::new(), Disk::new("1G", ""));
    let (mut site, servers) = (Site::new(), Servers::new(57));
    let ost0 = format!("{}/at/ost0", disk.dir());
    servers.start_mgs_and_mdt(&mut site);
    servers.serve(&mut site, &ost0, 3, &["--ost", "--index", "0"]);
    servers.serve(&mut site, &other.target("ost1"), 4, &["--ost", "--index", "1"]);
    let mount = servers.mount(&mut site);
    let create_on_ost0 = |name: &str| nacre(&["lfs", "setstripe", "-i", "0", &format!("{mount}/{name}")]);
    assert!(create_on_ost0("kept").ok && create_on_ost0("written").ok);
    sh(&format!(
        "head -c 5000000 /dev/urandom > {mount}/kept && sync -f {mount}/kept"
    ));
    let sum = sh(&format!("sha256sum < {mount}/kept"));
    let files_on_ost0 = |prefix: &str| {
        sh(&format!("cd {mount} && touch {prefix}{{1..20}}"));
        let index = |i| nacre_ok(&["lfs", "getstripe", "-i", &format!("{mount}/{prefix}{i}")]);
        (1..=20).filter(|i| index(*i).trim() == "0").count()
    };
    assert!(files_on_ost0("before") > 0);

    disk.fail();
    assert_fails(
        &format!("dd if=/dev/urandom of={mount}/written bs=1M count=20 conv=notrunc,fsync"),
        "",
    );
    let status = || nacre_ok(&["status", "--dir", &ost0]);
    wait_until("the store of the OST has failed", || {
        status().contains("refuses changes")
    });
    sleep(Duration::from_secs(1));
    assert_eq!(files_on_ost0("without"), 0);
    let refused = create_on_ost0("chosen");
    assert!(
        !refused.ok && refused.err.contains("Read-only file system"),
        "{}",
        refused.err
    );
    assert!(
        status().contains("problem  lus-OST0000 refuses changes"),
        "{}",
        status()
    );
    let df = nacre_ok(&["lfs", "df", &mount]);
    assert!(df.lines().any(|line| line.ends_with("[OST:0] R")), "{df}");
    let health = nacre(&["health"]).out;
    assert!(health.contains("its store failed and is read-only"), "{health}");
    // Existing files can be read, also by a client that has nothing in its cache.
    let second = site.mount(
        &format!("{}:/lus", servers.nid(1)),
        "second",
        &["--port", &servers.port],
    );
    assert_eq!(sh(&format!("sha256sum < {second}/kept")), sum);

    site.kill(&ost0);
    disk.repair();
    servers.serve(&mut site, &ost0, 3, &[]);
    let mut round = 0;
    wait_until("the OST gets new files again", || {
        round += 1;
        files_on_ost0(&format!("again{round}-")) > 0
    });
    assert_eq!(sh(&format!("sha256sum < {mount}/kept")), sum);
}
