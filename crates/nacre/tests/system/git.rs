//! Git: thousands of small files, renames, hard links, locks by exclusive creation, mapped packs.

use std::fmt::Write;

use crate::file_system::Shape;
use crate::fixture::sh;
use crate::workload::{WorkDirs, Workload, run_workload};

/// Start of each shell command: git ignores the machine's configuration and knows its user.
const GIT: &str = "export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b;";
const COMMITS: u64 = 300;
const FILES: u64 = 250;

const WORKLOAD: Workload = Workload {
    create,
    change,
    check,
};

/// A history in the format of git fast-import: creates, changes and removes files in directories;
/// one file is executable, and the last commit adds a symbolic link.
fn history() -> String {
    let mut stream = String::new();
    // A pseudorandom sequence that is the same in each run.
    let mut rng = fastrand::Rng::with_seed(1);
    let mut random_below = |below: u64| rng.u64(..below);
    for commit in 0..COMMITS {
        let time = 1_700_000_000 + commit * 60;
        writeln!(
            stream,
            "commit refs/heads/main\ncommitter A <a@b> {time} +0000\ndata 6\ncommit"
        )
        .unwrap();
        for _ in 0..6 {
            let file = random_below(FILES);
            let path = format!("d{}/s{}/f{file}", file % 7, file % 3);
            if random_below(20) == 0 {
                writeln!(stream, "M 100644 inline {path}\ndata 0\n\nD {path}").unwrap();
                continue;
            }
            let lines = 1 + random_below(120);
            let content: String = (0..lines)
                .map(|i| format!("line {i} {}\n", random_below(1 << 20)))
                .collect();
            let mode = if file == 3 { "100755" } else { "100644" };
            writeln!(
                stream,
                "M {mode} inline {path}\ndata {}\n{content}",
                content.len()
            )
            .unwrap();
        }
    }
    stream + "M 120000 inline link\ndata 2\nd1\n"
}

fn create(dirs: &WorkDirs) {
    let WorkDirs { dir, aside } = dirs;
    std::fs::write(format!("{aside}/history"), history()).unwrap();
    sh(&format!(
        "{GIT} git init -q --bare -b main {aside}/origin && git -C {aside}/origin fast-import --quiet < {aside}/history && \
         git -C {aside}/origin rev-parse main > {aside}/head && \
         git clone -q --no-local file://{aside}/origin {dir}/clone"
    ));
}

fn change(dirs: &WorkDirs) {
    let WorkDirs { dir, aside } = dirs;
    sh(&format!(
        "{GIT} cd {dir}/clone && git checkout -q -b work HEAD~40 && \
         for i in $(seq 20); do echo $i > new$i; git add new$i; git commit -q -m $i; done && \
         git mv d1 moved && git commit -q -am moved && git gc -q && git rebase -q HEAD~3 && \
         git push -q origin work && git rev-parse work > {aside}/head"
    ));
}

fn check(dirs: &WorkDirs) {
    let WorkDirs { dir, aside } = dirs;
    let output = sh(&format!(
        "{GIT} cd {dir}/clone && git fsck --strict --no-dangling --no-progress 2>&1 && git status --porcelain && \
         diff <(git rev-parse HEAD) {aside}/head && git diff --stat HEAD"
    ));
    assert_eq!(output, "");
    sh(&format!(
        "{GIT} git clone -q -b \"$(git -C {dir}/clone branch --show-current)\" file://{aside}/origin {aside}/other && \
         diff -r --exclude .git --no-dereference {aside}/other {dir}/clone && rm -rf {aside}/other"
    ));
}

#[test]
fn git_workload_in_one_process() {
    run_workload(Shape::OneProcess, &WORKLOAD);
}

#[test]
fn git_workload_in_four_processes() {
    run_workload(Shape::FourProcesses, &WORKLOAD);
}
