//! Running programs from the mount.

use std::fs::{self, OpenOptions};
use std::process::Command;

use crate::semantics::two_mounts::TwoMounts;

/// The errno of a program file that is open for writing, or of a write to a running program.
const ETXTBSY: Option<i32> = Some(26);

#[test]
fn execution_and_writing_exclude_each_other() {
    let env = TwoMounts::new();
    fs::copy("/bin/sleep", env.a.join("p")).unwrap();
    let mut running = Command::new(env.a.join("p")).arg("600").spawn().unwrap();
    for mount in [&env.a, &env.b] {
        let e = OpenOptions::new().write(true).open(mount.join("p")).unwrap_err();
        assert_eq!(e.raw_os_error(), ETXTBSY);
    }
    // Rename and unlink are permitted.
    fs::rename(env.b.join("p"), env.b.join("q")).unwrap();
    fs::remove_file(env.b.join("q")).unwrap();
    assert!(running.try_wait().unwrap().is_none());
    running.kill().unwrap();
    running.wait().unwrap();

    fs::copy("/bin/true", env.a.join("p")).unwrap();
    let writer = OpenOptions::new().write(true).open(env.a.join("p")).unwrap();
    for mount in [&env.a, &env.b] {
        let e = Command::new(mount.join("p")).status().unwrap_err();
        assert_eq!(e.raw_os_error(), ETXTBSY);
    }
    drop(writer);
    for mount in [&env.a, &env.b] {
        assert!(Command::new(mount.join("p")).status().unwrap().success());
    }
}

#[test]
fn scripts_need_the_execute_bit() {
    let env = TwoMounts::new();
    env.sh(
        "printf '#!/bin/sh\\necho ran\\n' > s; chmod 755 s; test \"$(./s)\" = ran; chmod 644 s; ! ./s 2> ../err
         grep -q 'Permission denied' ../err",
    );
}
