//! Times through real mounts: nanosecond resolution, equal on every mount and after a restart, and
//! suitable for make and git.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use crate::file_system::{FileSystem, Shape, text};
use crate::fixture::{nacre, nacre_ok, sh};

/// Access, modification and change time of a path.
fn times(path: &Path) -> [(i64, i64); 3] {
    let m = fs::symlink_metadata(path).unwrap();
    [
        (m.atime(), m.atime_nsec()),
        (m.mtime(), m.mtime_nsec()),
        (m.ctime(), m.ctime_nsec()),
    ]
}

fn now() -> (i64, i64) {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    (since.as_secs() as i64, since.subsec_nanos().into())
}

#[test]
fn times_are_equal_on_two_mounts_and_after_a_restart() {
    let mut system = FileSystem::new(Shape::FourProcesses);
    let (a, b) = (system.mount_point(), system.add_mount("other", 5));
    let names = ["file", "dir", "link"];
    sh(&format!(
        "cd {} && echo x > file && mkdir dir && ln -s file link && touch -h -d '2001-02-03 04:05:06.123456789 UTC' file dir link && \
         touch -a -d '1969-12-31 23:59:59.25 UTC' file && touch -d '2262-12-31 00:00:00.000000001 UTC' dir",
        text(&a)
    ));
    let expected: Vec<_> = names.iter().map(|name| times(&a.join(name))).collect();
    assert_eq!(expected[0][..2], [(-1, 250_000_000), (981_173_106, 123_456_789)]);
    assert_eq!(expected[1][1], (9_246_096_000, 1));
    assert_eq!(expected[2][1], (981_173_106, 123_456_789));
    let check = |at: &Path| {
        for (name, times_seen) in names.iter().zip(&expected) {
            assert_eq!(&times(&at.join(name)), times_seen, "{name} at {}", at.display());
        }
    };
    check(&b);
    system.stop();
    system.start();
    check(&system.mount_point());
    system.stop();
}

#[test]
fn changes_within_a_second_have_different_times() {
    let mut system = FileSystem::new(Shape::OneProcess);
    let (a, b) = (system.mount_point(), system.add_mount("other", 5));
    let file = |at: &Path| at.join("f");
    let mut last = now();
    // Each change has a later time than the previous one, but not in the future, on both mounts.
    for round in 0..50u32 {
        let (writer, other) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        match round % 5 {
            0 | 1 => fs::write(file(writer), round.to_string()).unwrap(),
            2 => File::options()
                .write(true)
                .open(file(writer))
                .unwrap()
                .set_len(9)
                .unwrap(),
            3 => sh(&format!("touch {}", text(&file(writer)))).clear(),
            _ => sh(&format!("printf x >> {}", text(&file(writer)))).clear(),
        }
        let [_, mtime, ctime] = times(&file(other));
        assert!(
            mtime > last && ctime >= mtime && ctime <= now(),
            "round {round}: {last:?} {mtime:?} {ctime:?}"
        );
        assert_eq!(times(&file(other)), times(&file(writer)), "round {round}");
        last = mtime;
    }
    // make rebuilds exactly the changed files, without waiting for the next second.
    sh(&format!(
        "cd {} && printf 'out: in\\n\\tcp in out\\n' > Makefile && for i in $(seq 20); do echo $i > in && make -s && \
         cmp in out && make -q || exit 1; done",
        text(&a)
    ));
    // git's index stores the times, and git finds no change right after a checkout.
    let git = "export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b;";
    let output = sh(&format!(
        "{git} cd {} && git init -q repo && cd repo && seq 100 | split -l 1 - f && git add . && git commit -qm all && rm f* && \
         git checkout -q . && git status --porcelain && git diff-files && git ls-files --debug faa | grep -o 'mtime: .*' && \
         stat -c 'mtime: %.9Y' faa | tr . :",
        text(&a)
    ));
    let lines: Vec<&str> = output.lines().collect();
    let [index, stat] = lines[..] else {
        panic!("{output}")
    };
    let fields = |line: &str| -> Vec<u64> {
        let numbers = line.trim_start_matches("mtime: ").split(':');
        numbers.map(|n| n.parse().unwrap()).collect()
    };
    assert_eq!(fields(index), fields(stat));
    system.stop();
}

#[test]
fn reads_update_atime_according_to_mount_options() {
    let mut system = FileSystem::new(Shape::OneProcess);
    let a = system.mount_point();
    let noatime_mount = system.add_mount_with("quiet", 5, "noatime");
    fs::write(a.join("f"), "x").unwrap();
    fs::create_dir(a.join("d")).unwrap();
    let (file, dir) = (a.join("f"), a.join("d"));
    let created = [times(&file), times(&dir)];
    fs::read(noatime_mount.join("f")).unwrap();
    fs::read_dir(noatime_mount.join("d")).unwrap().count();
    assert_eq!(
        [times(&noatime_mount.join("f")), times(&noatime_mount.join("d"))],
        created
    );
    let before = now();
    fs::read(&file).unwrap();
    fs::read_dir(&dir).unwrap().count();
    let read = [times(&file), times(&dir)];
    for ([atime, ..], [_, mtime, ctime]) in read.iter().zip(&created) {
        assert!(
            *atime > before && atime > mtime && atime > ctime,
            "{read:?} {created:?}"
        );
    }
    // relatime updates atime once after each change.
    std::thread::sleep(Duration::from_millis(10));
    fs::read(&file).unwrap();
    assert_eq!(times(&file), read[0]);
    fs::write(&file, "y").unwrap();
    fs::read(&file).unwrap();
    assert!(times(&file)[0] > read[0][0]);
    system.stop();
}

#[test]
fn remount_changes_mount_options() {
    let system = FileSystem::new(Shape::OneProcess);
    let mount = system.mount_point();
    let (file, source) = (mount.join("f"), system.addresses.source());
    fs::write(&file, "x").unwrap();
    let mount_entry = || sh(&format!("findmnt -n -o FSTYPE,VFS-OPTIONS {}", text(&mount)));
    let remount = |options: &str| {
        nacre_ok(&[
            "mount",
            "-o",
            &format!("remount,{options}"),
            &source,
            text(&mount),
        ])
    };
    // Waits until reads update atime (`expected`) or leave it unchanged. A mount applies changed
    // options with a short delay.
    let wait_for_atime_updates = |expected: bool| {
        let read = || {
            std::thread::sleep(Duration::from_millis(2));
            fs::read(&file).unwrap();
            times(&file)[0]
        };
        let deadline = Instant::now() + Duration::from_secs(120);
        while (read() != read()) != expected {
            assert!(Instant::now() < deadline, "{}", mount_entry());
        }
    };
    assert!(
        mount_entry().starts_with("fuse.nacre rw,nosuid,nodev,relatime"),
        "{}",
        mount_entry()
    );
    wait_for_atime_updates(false);
    remount("strictatime,nosuid,nodev");
    wait_for_atime_updates(true);
    remount("noatime,suid");
    assert!(
        mount_entry().starts_with("fuse.nacre rw,nodev,noatime"),
        "{}",
        mount_entry()
    );
    wait_for_atime_updates(false);
    remount("strictatime");
    wait_for_atime_updates(true);
    remount("ro,strictatime");
    wait_for_atime_updates(false);
    assert_eq!(
        fs::write(&file, "y").unwrap_err().kind(),
        ErrorKind::ReadOnlyFilesystem
    );
    remount("rw");
    fs::write(&file, "y").unwrap();
    let failure = nacre(&["mount", "-o", "remount,ro", &source, text(&system.site.path("d"))]);
    assert!(
        !failure.ok && failure.err.contains("nothing is mounted there"),
        "{}",
        failure.err
    );
    system.stop();
}
