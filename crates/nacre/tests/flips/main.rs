//! Flips random bits in the files of stopped targets of different age. Each flipped bit must be
//! reported by `nacre fsck --data`, or change neither a record nor data nor a label.
//!
//! `NACRE_FLIPS_FLIPS` sets the number of bits, `NACRE_FLIPS_SEED` the seed. `cargo xtask flips`
//! flips 5,000, optimised.

#![allow(clippy::unwrap_used)]

#[path = "../fixture/mod.rs"]
mod fixture;

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fixture::{Site, option, sh};
use osd::check::Progress;
use osd::target::TargetDir;
use osd::{LocalStores, Stores as _};
use rustix::fs::XattrFlags;

/// A tree of source files to copy.
const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/src");
/// The targets of the file systems.
const TARGETS: [&str; 4] = ["mgs", "mdt0000", "ost0000", "ost0001"];
/// Number and size of the attributes that make the MDT's index write sorted tables: more than two
/// memory tables of 8 MiB.
const ATTRS: usize = 300;
const ATTR_BYTES: usize = 60_000;

#[test]
fn flipped_bits_are_reported_or_change_nothing() {
    let (flips, seed) = (option("NACRE_FLIPS_FLIPS", 90), option("NACRE_FLIPS_SEED", 1));
    let mut site = Site::new();
    for name in ["new", "used", "old"] {
        match name {
            "new" => make_new(&mut site),
            "used" => make_used(&mut site),
            _ => make_old(&mut site),
        }
        let mut rng = fastrand::Rng::with_seed(seed);
        let counts = flip_bits(&site.path("d"), flips.div_ceil(3), &mut rng);
        println!("{name} targets, seed {seed}:");
        for (file, (reported, harmless)) in counts {
            println!("  {file}: {reported} reported, {harmless} without effect");
        }
        sh(&format!("rm -r {}", site.path_str("d")));
    }
}

/// Targets that have only just been made.
fn make_new(site: &mut Site) {
    let mount = site.up("d", &["--osts", "2"]);
    sh(&format!("echo contents > {mount}/file"));
    site.down("d");
}

/// Targets that were started three times, with removed files.
fn make_used(site: &mut Site) {
    for round in 0..3 {
        let mount = site.up("d", &["--osts", "2"]);
        sh(&format!(
            "cp -r {TREE} {mount}/{round}; rm -rf {mount}/{}",
            round - 1
        ));
        site.down("d");
    }
}

/// Targets with sorted tables.
fn make_old(site: &mut Site) {
    make_used(site);
    let mount = site.up("d", &["--osts", "2"]);
    for n in 0..ATTRS {
        let path = format!("{mount}/file{n}");
        fs::write(&path, format!("contents of {n}")).unwrap();
        let value = vec![n as u8; ATTR_BYTES];
        rustix::fs::setxattr(&path, "user.attribute", &value, XattrFlags::empty()).unwrap();
        if n % 3 == 0 {
            fs::remove_file(&path).unwrap();
        }
    }
    site.down("d");
    let tables = sh(&format!(
        "ls {}/mdt0000/index/keyspaces/1/tables",
        site.path_str("d")
    ));
    assert!(!tables.is_empty());
}

/// Flips bits one after the other. Returns the numbers of reported flips and of flips without
/// effect, by kind of file.
fn flip_bits(dir: &Path, flips: u64, rng: &mut fastrand::Rng) -> BTreeMap<String, (u64, u64)> {
    let kinds = files_with_data(dir);
    let intact = contents(dir);
    assert_eq!(problems(dir), Vec::<String>::new());
    let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for _ in 0..flips {
        // Each kind of file gets the same number of flips, although most files are objects.
        let files = rng.choice(kinds.values()).unwrap();
        let (path, len) = rng.choice(files).unwrap();
        let (at, bit) = (rng.u64(..*len), rng.u8(..8));
        let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
        let is_reported = !problems(dir).is_empty();
        assert!(
            is_reported || contents(dir) == intact,
            "bit {bit} of byte {at} of {}: other contents, and no report",
            path.display()
        );
        file.write_all_at(&byte, at).unwrap();
        let (reported, harmless) = counts.entry(kind_of(path)).or_default();
        *reported += u64::from(is_reported);
        *harmless += u64::from(!is_reported);
    }
    assert_eq!(problems(dir), Vec::<String>::new());
    counts
}

/// The kind of a file, for the table of results.
fn kind_of(path: &Path) -> String {
    let name = path.file_name().unwrap().to_string_lossy();
    let text = path.to_string_lossy();
    match () {
        () if text.contains("/tables/") => "tables".into(),
        () if text.contains("/objects/") && name != "uuid" => "objects".into(),
        () if text.contains("/keyspaces/") && name.starts_with('v') => "versions".into(),
        () if name.ends_with(".jnl") => "journals".into(),
        () => name.into_owned(),
    }
}

/// The files of the targets by their kinds, with the length of each file up to its last byte that
/// is not zero.
fn files_with_data(dir: &Path) -> BTreeMap<String, Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for target in TARGETS {
        files_below(&dir.join(target), &mut files);
    }
    files.sort();
    let mut kinds: BTreeMap<String, Vec<(PathBuf, u64)>> = BTreeMap::new();
    for path in files {
        let bytes = fs::read(&path).unwrap();
        if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
            kinds
                .entry(kind_of(&path))
                .or_default()
                .push((path, last as u64 + 1));
        }
    }
    kinds
}

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_below(&path, found),
            false => found.push(path),
        }
    }
}

/// The problems that a check of all targets with their data reports.
fn problems(dir: &Path) -> Vec<String> {
    let paths = TARGETS.map(|target| dir.join(target));
    block_on(async {
        let mut problems = Vec::new();
        let targets = match fsck::Targets::open_dirs(&paths, false) {
            Ok(targets) => targets.with_data(true),
            Err(e) => return vec![e.to_string()],
        };
        let mut report = |report: fsck::Report<'_>| problems.push(format!("{:?}", report.finding));
        match fsck::check(&targets, false, &Progress::default(), &mut report).await {
            Ok(summary) => problems.extend(summary.unchecked),
            Err(e) => problems.push(e.to_string()),
        }
        problems
    })
}

/// Hashes of the label, the records and the data of each target.
fn contents(dir: &Path) -> Vec<u64> {
    TARGETS
        .map(|target| block_on(contents_of(&dir.join(target))))
        .to_vec()
}

async fn contents_of(target: &Path) -> u64 {
    let mut hash = DefaultHasher::new();
    format!("{:?}", TargetDir::open_read_only(target).unwrap().label()).hash(&mut hash);
    let index = LocalStores::in_dir(target).open_index_read_only().await.unwrap();
    let rows = index.scan(&[], &[0xff; 2], usize::MAX).await;
    rows.unwrap().hash(&mut hash);
    let (mut objects, root) = (Vec::new(), target.join("objects"));
    if root.exists() {
        files_below(&root, &mut objects);
    }
    objects.sort();
    for object in objects {
        (&object, fs::read(&object).unwrap()).hash(&mut hash);
    }
    hash.finish()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(future)
}
