//! Running programs from the mount.

use std::fs::{self, OpenOptions};
use std::process::Command;

use crate::semantics::place::Place;

const TEXT_BUSY: Option<i32> = Some(26);

#[test]
fn etxtbsy_between_execution_and_writing() {
    let place = Place::new();
    fs::copy("/bin/sleep", place.a.join("p")).unwrap();
    let mut running = Command::new(place.a.join("p")).arg("600").spawn().unwrap();
    for mount in [&place.a, &place.b] {
        let e = OpenOptions::new().write(true).open(mount.join("p")).unwrap_err();
        assert_eq!(e.raw_os_error(), TEXT_BUSY);
    }
    // Rename and unlink are permitted.
    fs::rename(place.b.join("p"), place.b.join("q")).unwrap();
    fs::remove_file(place.b.join("q")).unwrap();
    assert!(running.try_wait().unwrap().is_none());
    running.kill().unwrap();
    running.wait().unwrap();

    fs::copy("/bin/true", place.a.join("p")).unwrap();
    let writer = OpenOptions::new().write(true).open(place.a.join("p")).unwrap();
    for mount in [&place.a, &place.b] {
        let e = Command::new(mount.join("p")).status().unwrap_err();
        assert_eq!(e.raw_os_error(), TEXT_BUSY);
    }
    drop(writer);
    for mount in [&place.a, &place.b] {
        assert!(Command::new(mount.join("p")).status().unwrap().success());
    }
}

#[test]
fn scripts_need_the_execute_bit() {
    let place = Place::new();
    place.sh(
        "printf '#!/bin/sh\\necho ran\\n' > s; chmod 755 s; test \"$(./s)\" = ran; chmod 644 s; ! ./s 2> ../err
         grep -q 'Permission denied' ../err",
    );
}
