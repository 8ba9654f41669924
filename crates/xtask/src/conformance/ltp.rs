//! `cargo xtask ltp`: the Linux Test Project's tests of file systems and of system calls on files,
//! with Nacre as the directory for temporary files.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::exceptions::{Exceptions, Outcome, Rule};
use super::{build_nacre, parse_arguments, start_instance};
use crate::stage::{Stage, root};

/// The exceptions.
pub(super) const EXCEPTIONS: &str = include_str!("../../exceptions/ltp.txt");

/// LTP's lists (`runtest`) that run as a whole.
const WHOLE_LISTS: [&str; 3] = ["fs", "fs_perms_simple", "fcntl-locktests"];
/// System calls on files. LTP's list `syscalls` names their tests after them.
const CALLS: &str = "access chdir chmod chown chroot close copy_file_range creat dup execve execveat \
    faccessat fallocate fchdir fchmod fchmodat fchown fchownat fcntl fdatasync fgetxattr file_attr \
    flistxattr flock fpathconf fremovexattr fsetxattr fstat fstatat fstatfs fsync ftruncate futimesat \
    getcwd getdents getxattr inotify ioctl_fiemap lchown lgetxattr link linkat listxattr llistxattr \
    llseek lremovexattr lseek lstat mkdir mkdirat mknod mknodat mmap msync munmap name_to_handle_at nftw \
    open open_by_handle_at openat pathconf posix_fadvise pread preadv pwrite pwritev read readahead \
    readdir readlink readlinkat readv realpath removexattr rename renameat rmdir sendfile setxattr splice \
    stat statfs statvfs statx symlink symlinkat sync sync_file_range syncfs tee truncate umask unlink \
    unlinkat utime utimensat utimes vmsplice write writev";
/// Directory of the checkout in which the tests are installed.
const PREFIX: &str = "nacre-ltp";
/// The directories of the checkout with the programs of these tests.
const PARTS: [&str; 4] = [
    "testcases/lib",
    "testcases/kernel/fs",
    "testcases/kernel/io/writetest",
    "testcases/kernel/syscalls",
];
/// A test's exit status if the machine lacks something that it needs (TCONF).
const EXIT_UNSUPPORTED: i32 = 32;
/// Time limit of a test. LTP's own limits are shorter, except for some old tests.
const LIMIT: Duration = Duration::from_secs(900);
/// Polling interval of the running test.
const TICK: Duration = Duration::from_millis(20);

/// Builds LTP and runs its tests. The first of `args` is LTP's checkout. If more follow, only the
/// tests run whose names contain one of them.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let arguments = parse_arguments("ltp", args)?;
    let exceptions = Exceptions::parse(EXCEPTIONS)?;
    build(&arguments.source)?;
    let bin = build_nacre()?;
    let prefix = arguments.source.join(PREFIX);
    let tests = tests(&prefix)?;
    let selected = |name: &str| {
        let parts = arguments.selected;
        parts.is_empty() || parts.iter().any(|part| name.contains(part.as_str()))
    };
    let may_run = |t: &&Test| selected(&t.name) && exceptions.rule(&t.name) != Some(Rule::Skip);
    let tests_to_run: Vec<&Test> = tests.iter().filter(may_run).collect();
    if tests_to_run.is_empty() {
        return Err(format!(
            "!!! no test that may run has a name with one of these parts: {}",
            arguments.selected.join(" ")
        ));
    }
    let instance = start_instance(&bin, "ltp", "127.77.0.1", true)?;
    let logs = root().join("target/conformance/ltp-logs");
    fs::create_dir_all(&logs).map_err(|e| format!("!!! {}: {e}", logs.display()))?;
    println!("=== outputs are in {}", logs.display());
    let mut outcomes = Vec::new();
    for test in tests_to_run {
        let start_time = Instant::now();
        let log = logs.join(format!("{}.log", test.name));
        let outcome = test.run(&prefix, &instance.mount_point(), &log)?;
        println!(
            "{outcome:?} {} ({:.1} s)",
            test.name,
            start_time.elapsed().as_secs_f64()
        );
        outcomes.push((test.name.clone(), outcome));
    }
    exceptions.judge(&outcomes)
}

/// Configures and builds the tests once.
fn build(source: &Path) -> Result<(), String> {
    let prefix = source.join(PREFIX);
    if prefix.join("runtest").is_dir() {
        return Ok(());
    }
    let stage = Stage::new("build LTP");
    let make = |args: &[&str]| {
        let mut make = Command::new("make");
        make.current_dir(source).args(args);
        make
    };
    stage.run(make(&["autotools"]))?;
    let mut configure = Command::new(source.join("configure"));
    configure.current_dir(source).arg("--prefix").arg(&prefix);
    stage.run(configure)?;
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    for part in PARTS {
        for goal in ["all", "install"] {
            stage.run(make(&["-C", part, "-j", &jobs.to_string(), goal]))?;
        }
    }
    // Install `runtest` last: its presence means that the other parts are complete.
    stage.run(make(&["-C", "runtest", "install"]))
}

/// A line of one of LTP's lists.
#[derive(Debug, PartialEq)]
struct Test {
    name: String,
    /// The command line, for the shell.
    command: String,
}

/// The tests of all lists.
fn tests(prefix: &Path) -> Result<Vec<Test>, String> {
    let read = |list: &str| {
        let path: PathBuf = prefix.join("runtest").join(list);
        fs::read_to_string(&path).map_err(|e| format!("!!! {}: {e}", path.display()))
    };
    let mut tests = Vec::new();
    for list in WHOLE_LISTS {
        tests.extend(parse(&read(list)?));
    }
    tests.extend(parse(&read("syscalls")?).filter(|t| is_about_files(&t.name)));
    Ok(tests)
}

fn parse(list: &str) -> impl Iterator<Item = Test> {
    list.lines().filter_map(|line| {
        let line = line.trim();
        let (name, command) = line.split_once(char::is_whitespace)?;
        (!name.starts_with('#')).then(|| Test {
            name: name.to_owned(),
            command: command.trim().to_owned(),
        })
    })
}

/// Whether a test of the list `syscalls`, such as `open01` or `openat02_64`, is about a call on
/// files.
fn is_about_files(test: &str) -> bool {
    let call = test
        .find(|c: char| c.is_ascii_digit())
        .map_or(test, |i| &test[..i]);
    CALLS.split_whitespace().any(|c| c == call.trim_end_matches('_'))
}

impl Test {
    /// Runs the test with its files in a directory of `mount_point`.
    fn run(&self, prefix: &Path, mount_point: &Path, log: &Path) -> Result<Outcome, String> {
        let failed = |e: std::io::Error| format!("!!! {}: {e}", self.name);
        let dir = mount_point.join("tmp");
        // LTP's processes change to other users, which need the directory, too.
        let made = Command::new("mkdir")
            .args(["-p", "-m", "1777"])
            .arg(&dir)
            .status();
        made.map_err(failed)?;
        let out = File::create(log).map_err(failed)?;
        let path = std::env::var("PATH").unwrap_or_default();
        let mut child = Command::new("sh")
            .args(["-c", &self.command])
            .process_group(0)
            .current_dir(&dir)
            .env("LTPROOT", prefix)
            .env(
                "PATH",
                format!("{}:{path}", prefix.join("testcases/bin").display()),
            )
            .env("TMPDIR", &dir)
            .env("LTP_COLORIZE_OUTPUT", "n")
            .stdin(Stdio::null())
            .stderr(out.try_clone().map_err(failed)?)
            .stdout(out)
            .spawn()
            .map_err(failed)?;
        let start_time = Instant::now();
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Ok(match status.code() {
                    Some(0) => Outcome::Passed,
                    Some(EXIT_UNSUPPORTED) => Outcome::Unsupported,
                    _ => Outcome::Failed,
                });
            }
            if start_time.elapsed() > LIMIT {
                let group = format!("-{}", child.id());
                let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
                child.wait().map_err(failed)?;
                return Ok(Outcome::Failed);
            }
            std::thread::sleep(TICK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Test, is_about_files, parse};

    #[test]
    fn lists_contain_names_and_commands() {
        let list = "#DESCRIPTION:x\nftest01 ftest01\n\n# why\nlftest01\tlftest -n 1; true\n";
        let test = |name: &str, command: &str| Test {
            name: name.to_owned(),
            command: command.to_owned(),
        };
        let expected = [test("ftest01", "ftest01"), test("lftest01", "lftest -n 1; true")];
        assert_eq!(parse(list).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn calls_on_files_are_recognised_by_test_names() {
        for yes in [
            "open",
            "open01",
            "openat02_64",
            "fcntl11",
            "rename14",
            "preadv203_64",
            "execve01",
        ] {
            assert!(is_about_files(yes), "{yes}");
        }
        for no in ["open_tree01", "renice01", "fork01", "statmount01"] {
            assert!(!is_about_files(no), "{no}");
        }
    }
}
