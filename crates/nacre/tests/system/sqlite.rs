//! SQLite in WAL mode: processes share memory through a mapped file and lock ranges of it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use crate::file_system::Shape;
use crate::fixture::sh;
use crate::workload::{WorkDirs, Workload, run_workload};

/// Number of transactions of a writer.
const TRANSACTIONS: u32 = 60;

const WORKLOAD: Workload = Workload {
    create,
    change,
    check,
};

/// Starts a process that runs statements on a database; failed statements appear in its output.
pub(crate) fn sqlite(db: &str, statements: &str) -> Child {
    let mut child = Command::new("sqlite3")
        .args(["-bail", "-cmd", ".timeout 60000", db])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    child
        .stdin
        .as_mut()
        .unwrap()
        .write_all(statements.as_bytes())
        .unwrap();
    child
}

/// Waits for the process and returns its output.
pub(crate) fn finish(child: Child) -> String {
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    String::from_utf8(out.stdout).unwrap()
}

/// Transactions that each move an amount from one account to another.
pub(crate) fn transfers(writer: &str) -> String {
    let transaction = |i| {
        format!(
            "begin immediate; insert into moves values('{writer}', {i}, {i}), ('{writer}', {i}, -{i}); commit;\n"
        )
    };
    (0..TRANSACTIONS).map(transaction).collect()
}

/// Runs two writers and a reader concurrently. No transaction is visible in part: the sum of all
/// amounts is 0.
fn run_writers(db: &str, round: &str) {
    let writers = ["one", "two"].map(|writer| sqlite(db, &transfers(&format!("{writer} {round}"))));
    let reader = sqlite(db, &"select coalesce(sum(amount), 0) from moves;\n".repeat(100));
    assert_eq!(finish(reader), "0\n".repeat(100));
    writers
        .into_iter()
        .for_each(|writer| assert_eq!(finish(writer), ""));
}

fn create(dirs: &WorkDirs) {
    let (db, aside) = (format!("{}/db", dirs.dir), &dirs.aside);
    let setup = "pragma journal_mode=wal; create table moves(who text, i integer, amount integer);";
    assert_eq!(finish(sqlite(&db, setup)), "wal\n");
    run_writers(&db, "before");
    sh(&format!("echo {} > {aside}/rows", 2 * 2 * TRANSACTIONS));
}

/// Kills the last process that uses the database, so that the log and the shared memory file
/// remain.
fn change(dirs: &WorkDirs) {
    let (db, aside) = (format!("{}/db", dirs.dir), &dirs.aside);
    run_writers(&db, "after");
    let mut last = sqlite(
        &db,
        &format!("pragma synchronous=full; {} select 'done';\n", transfers("last")),
    );
    let mut line = String::new();
    BufReader::new(last.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "done\n");
    last.kill().unwrap();
    last.wait().unwrap();
    sh(&format!(
        "test -s {db}-wal && echo {} > {aside}/rows",
        5 * 2 * TRANSACTIONS
    ));
}

fn check(dirs: &WorkDirs) {
    let (db, aside) = (format!("{}/db", dirs.dir), &dirs.aside);
    let rows = sh(&format!("cat {aside}/rows"));
    let queries = "pragma integrity_check; select sum(amount) from moves; select count(*) from moves;";
    assert_eq!(finish(sqlite(&db, queries)), format!("ok\n0\n{rows}"));
}

#[test]
fn sqlite_workload_in_one_process() {
    run_workload(Shape::OneProcess, &WORKLOAD);
}

#[test]
fn sqlite_workload_in_four_processes() {
    run_workload(Shape::FourProcesses, &WORKLOAD);
}
