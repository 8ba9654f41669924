//! Pure code: protocol rules that take events, bytes and the time, and return actions. The same
//! inputs give the same outputs, so tests and the simulator can repeat every decision. This check
//! lists the pure modules and the names that their code, except tests, must not use.

use super::{assert_none, code, files};
use crate::stage::root;
use std::fs;
use std::path::{Path, PathBuf};

/// Names of clocks, random sources, threads, tasks and system calls. Instants, durations and seeds
/// are values: pure code takes them as arguments.
const IMPURE: [&str; 26] = [
    "tokio",
    "async",
    "await",
    "spawn",
    "thread",
    "thread_local",
    "Instant::now",
    "SystemTime::now",
    "elapsed()",
    "std::env",
    "std::fs",
    "std::process",
    "rustix",
    "libc",
    "fastrand",
    "rand",
    "getrandom",
    "foldhash",
    // Maps and sets of pure code are ordered, or are `SeededMap` and `SeededSet`.
    "RandomState",
    "DefaultHasher",
    "HashState",
    "HashSeed::random",
    "HashMap",
    "HashSet",
    // Both read the clock.
    "warn_rate_limited",
    "tracing",
];

/// Names of locks, which only the modules of [`SHARED`] may use.
const LOCKS: [&str; 4] = ["parking_lot", "Mutex", "RwLock", "Condvar"];

/// Items of `cpt` that read no clock and start no task.
const PURE_CPT: [&str; 7] = [
    "Bug",
    "CptId",
    "HashSeed",
    "SeededMap",
    "SeededSet",
    "nid_hash",
    "parse_list",
];

/// The pure modules, and folders of them. A folder's files in `tests` and `tests.rs` are not
/// checked.
const PURE: [&str; 82] = [
    "client/src/atime.rs",
    "client/src/attr.rs",
    "client/src/data/cache.rs",
    "client/src/data/change_seq.rs",
    "client/src/data/ranges.rs",
    "client/src/data/read_ahead.rs",
    "client/src/data/striped_io.rs",
    "client/src/fidgen.rs",
    "client/src/inode/names.rs",
    "client/src/layout",
    "client/src/layout.rs",
    "client/src/lmv/fld.rs",
    "client/src/pack.rs",
    "client/src/perm.rs",
    "cpt/src/list.rs",
    "cpt/src/pattern.rs",
    "ldlm/src/action.rs",
    "ldlm/src/conflict.rs",
    "ldlm/src/deadlock.rs",
    "ldlm/src/extent.rs",
    "ldlm/src/flock.rs",
    "ldlm/src/lock.rs",
    "ldlm/src/mode.rs",
    "ldlm/src/mode_counts.rs",
    "ldlm/src/namespace.rs",
    "ldlm/src/policy.rs",
    "ldlm/src/queue.rs",
    "ldlm/src/reclaim.rs",
    "ldlm/src/request.rs",
    "ldlm/src/resource.rs",
    "ldlm/src/timers.rs",
    "ldlm/src/waits.rs",
    "lnet/src/counters.rs",
    "lnet/src/message.rs",
    "lnet/src/net_syntax.rs",
    "lnet/src/payload.rs",
    "lnet/src/pending.rs",
    "lnet/src/ping.rs",
    "lnet/src/rotor.rs",
    "lnet/src/tcp/hello.rs",
    "lnet/src/tcp/zc.rs",
    "lst/src/framework.rs",
    "lst/src/pattern.rs",
    "lst/src/settings.rs",
    "lst/src/spec.rs",
    "mdt/src/acl.rs",
    "mdt/src/body.rs",
    "mdt/src/cred.rs",
    "mdt/src/layout.rs",
    "mdt/src/lod.rs",
    "mdt/src/osp/pool.rs",
    "mdt/src/squash.rs",
    "mdt/src/updates/ledger.rs",
    "mdt/src/updates/message.rs",
    "mdt/src/updates/record.rs",
    "mgc/src/config.rs",
    "mgc/src/token.rs",
    "mgs/src/fsdb.rs",
    "mgs/src/sections.rs",
    "osd/src/local_objects/record.rs",
    "ost/src/grant.rs",
    "ost/src/modification_data.rs",
    "params/src/glob.rs",
    "params/src/histogram.rs",
    "params/src/jobs.rs",
    "params/src/param.rs",
    "params/src/start.rs",
    "params/src/value.rs",
    "rpc/src/at.rs",
    "rpc/src/fail/facts.rs",
    "rpc/src/fail/state.rs",
    "rpc/src/fail/table.rs",
    "rpc/src/import/machine.rs",
    "rpc/src/import/nid_change.rs",
    "rpc/src/import/uncommitted.rs",
    "rpc/src/opcode.rs",
    "rpc/src/server/flavor.rs",
    "rpc/src/server/nrs",
    "rpc/src/server/queue.rs",
    "rpc/src/server/reply_cache.rs",
    "rpc/src/xids.rs",
    "wire/src",
];

/// Pure modules with state that several threads share: they use locks, but never wait for an event.
const SHARED: [&str; 4] = [
    "mdt/src/squash.rs",
    "ost/src/grant.rs",
    "ost/src/modification_data.rs",
    "rpc/src/import/uncommitted.rs",
];

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `line` has `name` as whole words.
fn names(line: &str, name: &str) -> bool {
    line.match_indices(name)
        .any(|(i, _)| !line[..i].ends_with(is_word) && !line[i + name.len()..].starts_with(is_word))
}

/// The items of `cpt` that a line names.
fn cpt_items(line: &str) -> Vec<&str> {
    let paths = line
        .match_indices("cpt::")
        .map(|(i, path)| &line[i + path.len()..]);
    let items = paths.flat_map(|rest| match rest.strip_prefix('{') {
        Some(list) => list.split('}').next().unwrap_or_default().split(',').collect(),
        None => vec![rest],
    });
    let end = |item: &str| item.find(|c| !is_word(c)).unwrap_or(item.len());
    items.map(str::trim).map(|item| &item[..end(item)]).collect()
}

/// The names in a pure module's code that the module must not use.
fn violations(text: &str, may_lock: bool) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in code(text) {
        let impure = IMPURE.iter().filter(|name| names(line, name));
        let locks = LOCKS.iter().filter(|name| !may_lock && names(line, name));
        let used: Vec<_> = impure.chain(locks).copied().collect();
        let of_cpt = cpt_items(line)
            .into_iter()
            .filter(|item| !PURE_CPT.contains(item));
        for name in used.into_iter().chain(of_cpt) {
            found.push(format!("{number}: `{name}` in `{}`", line.trim()));
        }
    }
    found
}

/// The files of a module or of a folder of modules.
fn pure_files(module: &str) -> Vec<PathBuf> {
    let path = root().join("crates").join(module);
    if path.is_dir() {
        files(&path, "rs")
    } else {
        vec![path]
    }
}

#[test]
fn pure_code_names_no_clock_seed_thread_or_task() {
    let mut wrong = Vec::new();
    for module in PURE {
        let may_lock = SHARED.contains(&module);
        let is_test =
            |path: &Path| path.components().any(|c| c.as_os_str() == "tests") || path.ends_with("tests.rs");
        for path in pure_files(module).into_iter().filter(|path| !is_test(path)) {
            let text = fs::read_to_string(&path);
            let text = text.unwrap_or_else(|e| panic!("{}: {e}: remove it from PURE", path.display()));
            let found = violations(&text, may_lock).into_iter();
            wrong.extend(found.map(|v| format!("{}:{v}", path.display())));
        }
    }
    assert_none("impure names in pure code: take the value as an argument", wrong);
}

#[test]
fn impure_names_are_found_and_tests_may_use_them() {
    let text = "use cpt::{CptId, now};\n\
        // tokio\n\
        fn ready() -> bool {\n    since.elapsed() > LIMIT\n}\n\
        #[cfg(test)]\nfn later() {\n    Instant::now();\n}\n\
        struct Table(Mutex<HashMap<u64, u64>>);\n\
        struct Tokio(SeededMap<u64, u64>);\n\
        #[cfg(test)]\nmod tests {\n    use tokio::time;\n}\n";
    let lines = |may_lock| {
        let of = |v: String| v.split(" in ").next().unwrap_or_default().to_owned();
        violations(text, may_lock).into_iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(lines(true), ["1: `now`", "4: `elapsed()`", "10: `HashMap`"]);
    assert_eq!(
        lines(false),
        ["1: `now`", "4: `elapsed()`", "10: `HashMap`", "10: `Mutex`"]
    );
}
