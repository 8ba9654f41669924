//! Open files: files that programs open in a mount use no descriptors of Nacre's process, and
//! `nacre up` fails if its limit of descriptors is too low for its targets.

use crate::fixture::{Site, run, sh};
use std::process::Command;

#[test]
fn open_files_use_no_server_descriptors() {
    let mut site = Site::new();
    let (dir, nacre) = (site.directory("d"), env!("CARGO_BIN_EXE_nacre"));
    let up = |hard: u32| {
        let line = format!("ulimit -n {hard} && exec {nacre} up --dir {dir} --osts 1");
        run(Command::new("bash").args(["-c", &line]))
    };
    let failure = up(256);
    assert!(
        !failure.ok && failure.err.contains("ulimit -Hn 512"),
        "{}",
        failure.err
    );
    let success = up(512);
    assert!(success.ok, "{}", success.err);
    let at = format!("{dir}/mnt");
    // All files are open for writing and have data at the same time.
    let program = "import sys\n\
        files = [open('%s/f%d' % (sys.argv[1], i), 'w+') for i in range(3000)]\n\
        [f.write(str(i)) for i, f in enumerate(files)]\n\
        [f.flush() for f in files]\n\
        [f.seek(0) for f in files]\n\
        print(all(f.read() == str(i) for i, f in enumerate(files)))";
    let output = sh(&format!(
        "ulimit -n 4000 && python3 -c \"{program}\" {at} && ls {at} | wc -l"
    ));
    assert_eq!(output, "True\n3000\n");
    let log = std::fs::read_to_string(format!("{dir}/nacre.log")).unwrap();
    assert!(!log.contains("Too many open files"), "{log}");
    site.down("d");
}
