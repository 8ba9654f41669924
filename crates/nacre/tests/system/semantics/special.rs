//! Special files: FIFOs, sockets, devices.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::semantics::two_mounts::{TwoMounts, run_script_in};

#[test]
fn fifos_connect_processes_on_a_mount() {
    let env = TwoMounts::new();
    assert_eq!(env.sh("mkfifo p; (echo through > p) & cat p; wait"), "through\n");
    assert!(fs::metadata(env.b.join("p")).unwrap().file_type().is_fifo());
}

#[test]
fn sockets_connect_processes_on_a_mount() {
    let env = TwoMounts::new();
    let dir = env.fs.site.path("short");
    // Socket paths are limited to 107 bytes.
    std::os::unix::fs::symlink(&env.a, &dir).unwrap();
    let listener = UnixListener::bind(dir.join("s")).unwrap();
    let mut client = UnixStream::connect(dir.join("s")).unwrap();
    client.write_all(b"ping").unwrap();
    let mut received = [0; 4];
    listener.accept().unwrap().0.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"ping");
    assert!(fs::metadata(env.b.join("s")).unwrap().file_type().is_socket());
    fs::remove_file(env.b.join("s")).unwrap();
    assert!(!env.a.join("s").exists());
}

#[test]
fn devices_keep_their_numbers_and_work() {
    let mut env = TwoMounts::new();
    for (major, minor) in [(1, 3), (0, 0), (255, 255), (4095, 1_048_575), (259, 70_000)] {
        for ty in [FileType::CharacterDevice, FileType::BlockDevice] {
            let name = format!("{major}.{minor}.{ty:?}");
            let device = makedev(major, minor);
            mknodat(CWD, env.a.join(&name), ty, Mode::RUSR, device).unwrap();
            assert_eq!(fs::metadata(env.b.join(&name)).unwrap().rdev(), device);
        }
    }
    env.sh("mknod null c 1 3; mknod zero c 1 5; ! echo gone > null");
    let with_devices = env.fs.add_mount_with("with-devices", 10, "dev");
    run_script_in(
        &with_devices,
        "echo gone > null; test $(head -c 100 zero | wc -c) = 100",
    );
}
