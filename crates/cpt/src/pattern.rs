//! `cpu_pattern`: lists the CPUs of each partition, or CPUs to exclude from all partitions
//! (docs/protocol.md, "LNet"). Pure functions.
//!
//! | pattern | meaning |
//! |---|---|
//! | `0[0-3] 1[4-7/2]` | the CPUs of each partition: a number, a range, or a range with a stride |
//! | `N 0[0,1] 1[2,3]` | the NUMA nodes of each partition, with all their CPUs |
//! | `X[0,8]` | equal partitions (number set or estimated), then these CPUs removed from them |
//! | `C[0,1]` | equal partitions as for `X`, then the CPUs at these positions (from 0) removed |
//! | `N X[0]`, `N C[0]` | one partition per NUMA node, without these CPUs or positions |
//!
//! [`crate::layout()`] handles `N` alone and the empty pattern. Letters may be lower case.

use crate::layout::per_node;
use crate::list::parse_list;
use crate::{CptError, Topology};

/// The meaning of the lists in a pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The CPUs of a partition.
    Assign,
    /// CPUs to exclude from all partitions.
    ExcludeCpus,
    /// Positions to exclude from each partition.
    ExcludePositions,
}

/// The CPUs of each partition that `pattern` describes, by partition number. `number` is the number
/// of partitions that the administrator set, if any. `divide` divides all CPUs into a number of
/// equal partitions.
pub(crate) fn parse(
    topology: &Topology,
    pattern: &str,
    number: Option<usize>,
    divide: &dyn Fn(usize) -> Result<Vec<Vec<usize>>, CptError>,
) -> Result<Vec<Vec<usize>>, CptError> {
    let invalid = |why: String| CptError::Pattern {
        pattern: pattern.to_owned(),
        why,
    };
    let (by_node, rest) = strip_letter(pattern, 'n');
    let (kind, rest) = match (strip_letter(rest, 'x'), strip_letter(rest, 'c')) {
        ((true, rest), _) => (Kind::ExcludeCpus, rest),
        (_, (true, rest)) => (Kind::ExcludePositions, rest),
        _ => (Kind::Assign, rest),
    };
    if kind == Kind::Assign {
        return assign(topology, rest, by_node, number).map_err(invalid);
    }
    let mut cpts = match (by_node, number) {
        (true, _) => per_node(topology),
        (false, Some(n)) => divide(n)?,
        (false, None) => divide(crate::estimate(topology))?,
    };
    for item in parse_items(rest).map_err(invalid)? {
        exclude(topology, &mut cpts, kind, &item).map_err(invalid)?;
    }
    match cpts.iter().position(Vec::is_empty) {
        Some(cpt) => Err(invalid(format!("all CPUs of partition {cpt} are excluded"))),
        None => Ok(cpts),
    }
}

/// One `NUMBER[LIST]` of a pattern.
struct Item<'a> {
    /// The text before the list: the number of a partition, or empty.
    number: &'a str,
    /// CPUs, NUMA nodes or positions, by the kind of the pattern.
    list: Vec<usize>,
}

fn parse_items(text: &str) -> Result<Vec<Item<'_>>, String> {
    let mut rest = text.trim();
    let mut items = Vec::new();
    while !rest.is_empty() {
        let (number, after) = rest
            .split_once('[')
            .ok_or_else(|| format!("expected a list such as [0-3], found '{rest}'"))?;
        let (list, after) = after
            .split_once(']')
            .ok_or_else(|| format!("'[' without ']': '{rest}'"))?;
        let list = parse_list(list)?;
        if list.is_empty() {
            return Err(format!("empty list between '[' and ']': '{}'", rest.trim_end()));
        }
        items.push(Item {
            number: number.trim(),
            list,
        });
        rest = after.trim();
    }
    match items.is_empty() {
        true => Err("expected partitions such as 0[0-3] 1[4-7], or N for one per NUMA node".into()),
        false => Ok(items),
    }
}

fn assign(
    topology: &Topology,
    text: &str,
    by_node: bool,
    number: Option<usize>,
) -> Result<Vec<Vec<usize>>, String> {
    let items = parse_items(text)?;
    let count = items.len();
    if let Some(n) = number.filter(|&n| n != count) {
        return Err(format!(
            "the pattern names {count} partitions, but cpu_npartitions is {n}"
        ));
    }
    let mut cpts: Vec<Vec<usize>> = vec![Vec::new(); count];
    // CPUs and their partitions.
    let mut assigned: Vec<(usize, usize)> = Vec::new();
    for item in items {
        let id: usize = item
            .number
            .parse()
            .map_err(|_| format!("'{}' is not the number of a partition", item.number))?;
        let cpt = cpts.get_mut(id).ok_or_else(|| {
            format!(
                "partition {id} is out of range: {count} partitions are listed, numbered from 0 to {}",
                count - 1
            )
        })?;
        if !cpt.is_empty() {
            return Err(format!("partition {id} is listed twice"));
        }
        for n in item.list {
            let cpus = if by_node {
                cpus_of_node(topology, n)?
            } else {
                vec![check_cpu(topology, n)?]
            };
            for cpu in cpus {
                match assigned.iter().find(|(c, _)| *c == cpu) {
                    Some((_, other)) => {
                        return Err(format!(
                            "CPU {cpu} is in both partition {other} and partition {id}"
                        ));
                    }
                    None => assigned.push((cpu, id)),
                }
                cpt.push(cpu);
            }
        }
        cpt.sort_unstable();
    }
    Ok(cpts)
}

fn exclude(topology: &Topology, cpts: &mut [Vec<usize>], kind: Kind, item: &Item<'_>) -> Result<(), String> {
    if !item.number.is_empty() {
        return Err(format!(
            "expected only a list after X or C, found '{}' before the list",
            item.number
        ));
    }
    for &n in &item.list {
        if kind == Kind::ExcludeCpus {
            check_cpu(topology, n)?;
        } else if let Some(cpt) = cpts.iter().position(|cpus| n >= cpus.len()) {
            let count = cpts[cpt].len();
            return Err(format!(
                "position {n} is out of range: partition {cpt} has {count} CPUs, numbered from 0"
            ));
        }
    }
    for cpus in cpts {
        let mut position = 0;
        cpus.retain(|cpu| {
            let n = if kind == Kind::ExcludeCpus { *cpu } else { position };
            position += 1;
            !item.list.contains(&n)
        });
    }
    Ok(())
}

/// Whether the text begins with this letter (in either case), and the rest of the text.
fn strip_letter(text: &str, letter: char) -> (bool, &str) {
    let text = text.trim_start();
    match text.strip_prefix([letter, letter.to_ascii_uppercase()]) {
        Some(rest) => (true, rest),
        None => (false, text),
    }
}

fn check_cpu(topology: &Topology, cpu: usize) -> Result<usize, String> {
    match topology.cores().flatten().any(|&c| c == cpu) {
        true => Ok(cpu),
        false => Err(format!(
            "CPU {cpu} does not exist, or this process may not run on it"
        )),
    }
}

fn cpus_of_node(topology: &Topology, id: usize) -> Result<Vec<usize>, String> {
    let node = topology.nodes.iter().find(|n| n.id == id);
    node.map(|n| n.cpus())
        .ok_or_else(|| format!("NUMA node {id} does not exist, or has no CPU that this process may run on"))
}
