//! The rules and patterns of partitions, applied to the machines of the published measurements.
//! Each machine is a text file in `machines/`. From this file, the test creates the files that the
//! machine has below `/sys/devices/system`.
#![allow(clippy::unwrap_used)]

use cpt::{CptConfig, CptError, Topology, estimate, layout, published_count};
use std::fs;
use std::path::Path;
use std::sync::Mutex;

const MDS: &str = include_str!("machines/mds-2x6x2.txt");
const EIGHT_SOCKETS: &str = include_str!("machines/8x2.txt");
const FIFTY_CORES: &str = include_str!("machines/1x50.txt");
const FOUR_SOCKETS: &str = include_str!("machines/4x2nodes.txt");
const TWO_SOCKETS: &str = include_str!("machines/2x4nodes.txt");

/// Creates the sysfs files of a machine below `root`.
fn write_sysfs(machine: &str, root: &Path) {
    let put = |path: String, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    };
    let mut nodes = 0;
    for line in machine.lines().filter(|l| !l.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["online", cpus] => put("cpu/online".into(), cpus),
            ["node", id, "cpus", cpus, "distance", ..] => {
                put(format!("node/node{id}/cpulist"), cpus);
                put(format!("node/node{id}/distance"), &words[5..].join(" "));
                nodes += 1;
            }
            ["package", id, "cores", ..] => {
                for core in &words[3..] {
                    for cpu in core.split(',') {
                        put(format!("cpu/cpu{cpu}/topology/thread_siblings_list"), core);
                        put(format!("cpu/cpu{cpu}/topology/physical_package_id"), id);
                    }
                }
            }
            _ => panic!("{line}"),
        }
    }
    put("node/online".into(), &format!("0-{}", nodes - 1));
}

/// The topology of a machine, parsed once.
fn machine(text: &'static str) -> Topology {
    static PARSED: Mutex<Vec<(&str, Topology)>> = Mutex::new(Vec::new());
    let mut parsed = PARSED.lock().unwrap();
    if let Some((_, topology)) = parsed.iter().find(|(t, _)| *t == text) {
        return topology.clone();
    }
    let topology = limited_machine(text, |_| true);
    parsed.push((text, topology.clone()));
    topology
}

/// The topology of a machine, limited to CPUs for which `allowed` is true.
fn limited_machine(text: &str, allowed: impl Fn(usize) -> bool) -> Topology {
    let dir = tempfile::tempdir().unwrap();
    write_sysfs(text, dir.path());
    Topology::from_sysfs(dir.path(), allowed).unwrap()
}

fn partitions(
    text: &'static str,
    cpu_npartitions: usize,
    pattern: Option<&str>,
) -> Result<Vec<Vec<usize>>, CptError> {
    let cfg = CptConfig {
        cpu_npartitions,
        cpu_pattern: pattern.map(str::to_owned),
        ..CptConfig::default()
    };
    layout(&machine(text), &cfg)
}

fn by_pattern(text: &'static str, pattern: &str) -> Vec<Vec<usize>> {
    partitions(text, 0, Some(pattern)).unwrap()
}

fn error_of(text: &'static str, cpu_npartitions: usize, pattern: &str) -> String {
    partitions(text, cpu_npartitions, Some(pattern))
        .unwrap_err()
        .to_string()
}

fn range(from: usize, to: usize, step: usize) -> Vec<usize> {
    (from..=to).step_by(step).collect()
}

#[test]
fn topology_is_read_from_sysfs() {
    let mds = machine(MDS);
    assert_eq!((mds.nodes.len(), mds.cpus().len(), mds.siblings()), (2, 24, 2));
    assert_eq!(mds.nodes[1].cores[0], [1, 13]);
    assert_eq!(mds.nodes[0].distances, [10, 20]);
    let two = machine(TWO_SOCKETS);
    assert_eq!((two.nodes.len(), two.cpus().len(), two.siblings()), (8, 128, 2));
    assert_eq!(
        two.nodes[7].cpus(),
        [range(56, 63, 1), range(120, 127, 1)].concat()
    );
}

#[test]
fn cpus_and_nodes_outside_the_cpuset_are_left_out() {
    let half = limited_machine(MDS, |cpu| cpu % 2 == 1 && cpu < 12);
    assert_eq!((half.nodes.len(), half.nodes[0].id, half.siblings()), (1, 1, 1));
    assert_eq!(layout(&half, &CptConfig::default()).unwrap(), [range(1, 11, 2)]);
}

#[test]
fn by_default_each_numa_node_is_a_partition() {
    for (text, count) in [
        (MDS, 2),
        (EIGHT_SOCKETS, 8),
        (FIFTY_CORES, 1),
        (FOUR_SOCKETS, 8),
        (TWO_SOCKETS, 8),
    ] {
        assert_eq!(partitions(text, 0, None).unwrap().len(), count);
        assert_eq!(by_pattern(text, "N"), partitions(text, 0, None).unwrap());
    }
    assert_eq!(partitions(MDS, 0, None).unwrap()[1], range(1, 23, 2));
}

#[test]
fn published_rule_and_estimate_give_the_expected_numbers() {
    for (text, by_rule, by_estimate) in [
        (MDS, 4, 6),
        (EIGHT_SOCKETS, 4, 8),
        (FIFTY_CORES, 5, 25),
        (FOUR_SOCKETS, 4, 16),
        (TWO_SOCKETS, 8, 32),
    ] {
        let machine = machine(text);
        assert_eq!(
            (published_count(&machine), estimate(&machine)),
            (by_rule, by_estimate),
            "{text}"
        );
        assert_eq!(by_pattern(text, "").len(), by_estimate);
        let cfg = CptConfig {
            published_rule: true,
            ..CptConfig::default()
        };
        assert_eq!(layout(&machine, &cfg).unwrap().len(), by_rule);
    }
    let small = limited_machine(FIFTY_CORES, |cpu| cpu < 4);
    assert_eq!((published_count(&small), estimate(&small)), (1, 1));
}

#[test]
fn siblings_stay_in_one_partition_while_cores_suffice() {
    let four = partitions(MDS, 4, None).unwrap();
    assert_eq!(four[0], [0, 2, 4, 12, 14, 16]);
    assert_eq!(four[3], [7, 9, 11, 19, 21, 23]);
    let five = partitions(MDS, 5, None).unwrap();
    assert_eq!(five.iter().map(Vec::len).collect::<Vec<_>>(), [6, 6, 4, 4, 4]);
    for cpus in five {
        assert!(
            cpus.iter().all(|cpu| cpus.contains(&((cpu + 12) % 24))),
            "{cpus:?}"
        );
    }
    assert!(
        partitions(MDS, 24, None)
            .unwrap()
            .iter()
            .all(|cpus| cpus.len() == 1)
    );
}

#[test]
fn partition_sizes_differ_by_one_core_at_most() {
    let sizes: Vec<usize> = partitions(EIGHT_SOCKETS, 3, None)
        .unwrap()
        .iter()
        .map(Vec::len)
        .collect();
    assert_eq!(sizes, [6, 5, 5]);
    assert_eq!(
        partitions(FIFTY_CORES, 3, Some("N")).unwrap()[2],
        range(34, 49, 1)
    );
}

#[test]
fn more_partitions_than_cpus_are_refused_unless_forced() {
    let why = partitions(MDS, 25, None).unwrap_err().to_string();
    assert!(
        why.contains("cpu_npartitions=25") && why.contains("at most 24"),
        "{why}"
    );
    let two = limited_machine(MDS, |cpu| cpu < 2);
    let forced = CptConfig {
        cpu_npartitions: 3,
        force_partitions: true,
        ..CptConfig::default()
    };
    assert_eq!(layout(&two, &forced).unwrap(), [vec![0], vec![1], vec![0]]);
}

#[test]
fn the_patterns_of_the_manual_are_accepted() {
    // CPUs of each socket.
    assert_eq!(
        by_pattern(MDS, "0[0-6/2] 1[1-7/2]"),
        [range(0, 6, 2), range(1, 7, 2)]
    );
    assert_eq!(
        by_pattern(FOUR_SOCKETS, "1[4-7] 0[0,1,2,3]"),
        [range(0, 3, 1), range(4, 7, 1)]
    );
    // NUMA nodes.
    assert_eq!(
        by_pattern(FOUR_SOCKETS, "N 0[0,2] 1[1,3]"),
        [
            [range(0, 3, 1), range(8, 11, 1)].concat(),
            [range(4, 7, 1), range(12, 15, 1)].concat()
        ]
    );
    assert_eq!(by_pattern(MDS, "n 0[1] 1[0]"), [range(1, 23, 2), range(0, 22, 2)]);
    // A client on part of the machine.
    assert_eq!(by_pattern(FOUR_SOCKETS, "0[0-31/4]"), [range(0, 28, 4)]);
}

#[test]
fn excluded_cpus_and_positions_are_removed_from_partitions() {
    let four: Vec<Vec<usize>> = (0..4).map(|n| range(4 * n, 4 * n + 3, 1)).collect();
    assert_eq!(partitions(EIGHT_SOCKETS, 4, Some("")).unwrap(), four);
    let without_two = |n: usize| range(4 * n + 2, 4 * n + 3, 1);
    assert_eq!(
        partitions(EIGHT_SOCKETS, 4, Some("C[0,1]")).unwrap(),
        (0..4).map(without_two).collect::<Vec<_>>()
    );
    assert_eq!(
        partitions(EIGHT_SOCKETS, 3, Some("X[0]")).unwrap(),
        [range(1, 5, 1), range(6, 10, 1), range(11, 15, 1)]
    );
    assert_eq!(by_pattern(FOUR_SOCKETS, "N C[0]")[7], [29, 30, 31]);
    assert_eq!(by_pattern(FOUR_SOCKETS, "N x[0-1] [31]")[0], [2, 3]);
    assert_eq!(by_pattern(FIFTY_CORES, "X[0-3/2]").concat().len(), 48);
}

#[test]
fn each_mistake_has_its_message() {
    for (pattern, why) in [
        ("garbage", "found 'garbage'"),
        ("0[0] tail", "found 'tail'"),
        ("0[0", "'[' without ']'"),
        ("0[]", "empty list"),
        ("N 0", "found '0'"),
        ("N X", "expected partitions such as"),
        ("x0[0]", "found '0' before the list"),
        ("a[0]", "'a' is not the number of a partition"),
        ("[0]", "'' is not the number"),
        ("1[0]", "partition 1 is out of range: 1 partitions"),
        ("0[0] 2[1]", "2 partitions are listed, numbered from 0 to 1"),
        ("0[0] 0[1]", "partition 0 is listed twice"),
        ("0[0-3] 1[3-4]", "CPU 3 is in both partition 0 and partition 1"),
        ("0[30-32]", "CPU 32 does not exist"),
        ("N 0[8]", "NUMA node 8 does not exist"),
        ("0[3-1]", "'3-1' is not a range"),
        ("0[0-7/0]", "'0-7/0' is not a range"),
        ("0[1,two]", "'two' is not a number"),
        ("X[32]", "CPU 32 does not exist"),
        ("N X[0-3]", "all CPUs of partition 0 are excluded"),
        ("N C[4]", "position 4 is out of range: partition 0 has 4 CPUs"),
    ] {
        let error = error_of(FOUR_SOCKETS, 0, pattern);
        assert!(
            error.starts_with(&format!("cpu_pattern '{pattern}': ")) && error.contains(why),
            "{error}"
        );
    }
    assert!(error_of(FOUR_SOCKETS, 3, "0[0] 1[1]").contains("names 2 partitions, but cpu_npartitions is 3"));
}
