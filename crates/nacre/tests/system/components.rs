//! Files with composite layouts through real mounts: copies, sparse writes, truncates, appends of
//! two mounts, and the end of the metadata server between a change of a layout and the data.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::file_system::{FileSystem, Shape, text};
use crate::fixture::{nacre_ok, sh};

/// Host numbers of the second OST and of the second client.
const SECOND_OST: u8 = 5;
const SECOND_CLIENT: u8 = 6;

/// Writes to two components, waits for a line after each, and closes the file.
const WRITER: &str = "
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
for mib in 2, 20:
    assert os.pwrite(fd, b'%04d' % mib * 1000, mib << 20) == 4000
    print('written', flush=True)
    sys.stdin.readline()
os.fsync(fd)
os.close(fd)
";

#[test]
fn files_grow_over_components_through_two_mounts_and_a_crash() {
    let mut fs = FileSystem::new(Shape::FourProcesses);
    fs.start_second_ost("ost2", SECOND_OST);
    let first = text(&fs.mount_point()).to_owned();
    let second = text(&fs.add_mount("mnt2", SECOND_CLIENT)).to_owned();
    let source = fs.site.path_str("source");
    let dir = format!("{first}/dir");
    sh(&format!("mkdir {source} {dir}"));
    nacre_ok(&[
        "lfs",
        "setstripe",
        "-E",
        "1M",
        "-c",
        "1",
        "-S",
        "64K",
        "-E",
        "8M",
        "-c",
        "2",
        "-E",
        "-1",
        "-c",
        "-1",
        &dir,
    ]);

    // Files of many sizes, compared through the other mount.
    sh(&format!(
        "cd {source}
         for size in 0 1 65536 1048575 1048576 1048577 5000000 8388608 20000000; do
             head -c $size /dev/urandom > $size
         done
         cp -r {source} {dir}/copy && diff -r {source} {second}/dir/copy"
    ));
    // A sparse write far out, and truncates across components.
    sh(&format!(
        "cp {source}/1 {dir}/sparse
         echo end | dd of={dir}/sparse bs=1 seek=50G conv=notrunc status=none
         cd {second}/dir
         [ $(stat -c %s sparse) = $((50 * 1024 * 1024 * 1024 + 4)) ] && [ $(tail -c 4 sparse) = end ]
         cmp -n 1 sparse {source}/1
         head -c 9000000 sparse | tail -c +2 | tr -d '\\0' | cmp - /dev/null
         cp {source}/20000000 cut; truncate -s 3000000 cut; truncate -s 12000000 cut
         cmp -n 3000000 {dir}/cut {source}/20000000
         tail -c +3000001 {dir}/cut | cmp - <(head -c 9000000 /dev/zero)"
    ));
    // Appends in turns.
    sh(&format!(
        "for i in $(seq 100); do
             head -c 100000 {source}/5000000 >> {first}/dir/log
             head -c 60000 {source}/20000000 >> {second}/dir/log
             (head -c 100000 {source}/5000000; head -c 60000 {source}/20000000) >> {source}/log
         done
         cmp {source}/log {first}/dir/log; cmp {source}/log {second}/dir/log"
    ));

    // The metadata server ends after it has created objects, before their data is written.
    let mut writer = Command::new("python3")
        .args(["-c", WRITER, &format!("{dir}/crash")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let mut input = writer.stdin.take().unwrap();
    for _ in 0..2 {
        assert_eq!(lines.next().unwrap().unwrap(), "written");
        fs.site.kill("mdt");
        fs.start_server("mdt");
        input.write_all(b"\n").unwrap();
    }
    assert!(writer.wait().unwrap().success());
    for mount in [&first, &second] {
        sh(&format!(
            "cd {mount}/dir; [ $(stat -c %s crash) = $((20 * 1048576 + 4000)) ]
             for mib in 2 20; do
                 cmp -n 4000 -i $((mib * 1048576)):0 crash <(printf %04d $(yes $mib | head -1000))
             done"
        ));
    }

    // A renamed-over and a removed file leave no objects.
    sh(&format!(
        "cd {second}/dir; mv copy/20000000 cut; rm -r copy/5000000 sparse; sync -f ."
    ));
    nacre_ok(&["umount", &second]);
    fs.stop();
    fs.site.down("ost2");
    let dirs = ["mdt", "ost", "ost2"].map(|name| fs.site.path_str(name));
    nacre_ok(&["fsck", &dirs[0], &dirs[1], &dirs[2]]);
}
