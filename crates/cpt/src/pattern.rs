//! `cpu_pattern`: partitions named one by one, or the CPUs that no partition is to have (guide 12.1). Pure.
//!
//! | pattern | means |
//! |---|---|
//! | `0[0-3] 1[4-7/2]` | these CPUs, each a number, a range, or a range with a stride |
//! | `N 0[0,1] 1[2,3]` | all CPUs of these NUMA nodes |
//! | `X[0,8]` | what there would be otherwise, without these CPUs |
//! | `C[0,1]` | what there would be otherwise, without the CPUs that come at these places in each partition |
//! | `N X[0]`, `N C[0]` | one partition per NUMA node, without those |
//!
//! `N` and the empty pattern alone are in [`crate::layout()`]. Letters may be small.

use crate::layout::per_node;
use crate::list::parse_list;
use crate::{CptError, Topology};

/// What a list of CPUs is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Says what partitions have.
    Sets,
    /// CPUs that none has.
    Without,
    /// Places in each partition that it does not have.
    WithoutPlaces,
}

/// The partitions that `pattern` names, in the order of their numbers. `number` is `cpu_npartitions`, and `even` divides the
/// machine into so many.
pub(crate) fn parse(
    topology: &Topology,
    pattern: &str,
    number: Option<usize>,
    even: &dyn Fn(usize) -> Result<Vec<Vec<usize>>, CptError>,
) -> Result<Vec<Vec<usize>>, CptError> {
    let bad = |why: String| CptError::Pattern {
        pattern: pattern.to_owned(),
        why,
    };
    let (by_node, rest) = letter(pattern, 'n');
    let (kind, rest) = match (letter(rest, 'x'), letter(rest, 'c')) {
        ((true, rest), _) => (Kind::Without, rest),
        (_, (true, rest)) => (Kind::WithoutPlaces, rest),
        _ => (Kind::Sets, rest),
    };
    if kind == Kind::Sets {
        return sets(topology, rest, by_node, number).map_err(bad);
    }
    let mut cpts = match (by_node, number) {
        (true, _) => per_node(topology),
        (false, Some(n)) => even(n)?,
        (false, None) => even(crate::estimate(topology))?,
    };
    for item in items(rest).map_err(bad)? {
        exclude(topology, &mut cpts, kind, &item).map_err(bad)?;
    }
    match cpts.iter().position(Vec::is_empty) {
        Some(cpt) => Err(bad(format!("all CPUs of partition {cpt} are excluded"))),
        None => Ok(cpts),
    }
}

/// One `NUMBER[LIST]`.
struct Item<'a> {
    number: &'a str,
    list: Vec<usize>,
}

fn items(text: &str) -> Result<Vec<Item<'_>>, String> {
    let mut rest = text.trim();
    let mut items = Vec::new();
    while !rest.is_empty() {
        let (number, after) = rest
            .split_once('[')
            .ok_or_else(|| format!("expected a list such as [0-3], found '{rest}'"))?;
        let (list, after) = after
            .split_once(']')
            .ok_or_else(|| format!("a '[' without its ']': '{rest}'"))?;
        let list = parse_list(list)?;
        if list.is_empty() {
            return Err(format!("nothing is between '[' and ']': '{}'", rest.trim_end()));
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

fn sets(
    topology: &Topology,
    text: &str,
    by_node: bool,
    number: Option<usize>,
) -> Result<Vec<Vec<usize>>, String> {
    let items = items(text)?;
    let count = items.len();
    if let Some(n) = number.filter(|&n| n != count) {
        return Err(format!("it names {count} partitions, but cpu_npartitions is {n}"));
    }
    let mut cpts: Vec<Vec<usize>> = vec![Vec::new(); count];
    let mut taken: Vec<(usize, usize)> = Vec::new();
    for item in items {
        let id: usize = item
            .number
            .parse()
            .map_err(|_| format!("'{}' is not the number of a partition", item.number))?;
        let cpt = cpts.get_mut(id).ok_or_else(|| {
            format!(
                "partition {id}, but only {count} are named: from 0 to {}",
                count - 1
            )
        })?;
        if !cpt.is_empty() {
            return Err(format!("partition {id} is set twice"));
        }
        for n in item.list {
            let cpus = if by_node {
                of_node(topology, n)?
            } else {
                vec![known(topology, n)?]
            };
            for cpu in cpus {
                match taken.iter().find(|(of, _)| *of == cpu) {
                    Some((_, other)) => return Err(format!("CPU {cpu} is in partition {other} and in {id}")),
                    None => taken.push((cpu, id)),
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
            "expected a list alone after X or C, found '{}' before it",
            item.number
        ));
    }
    for &n in &item.list {
        if kind == Kind::Without {
            known(topology, n)?;
        } else if let Some(cpt) = cpts.iter().position(|cpus| n >= cpus.len()) {
            let has = cpts[cpt].len();
            return Err(format!(
                "place {n} in each partition, but partition {cpt} has only {has} CPUs: from 0"
            ));
        }
    }
    for cpus in cpts {
        let mut place = 0;
        cpus.retain(|cpu| {
            let n = if kind == Kind::Without { *cpu } else { place };
            place += 1;
            !item.list.contains(&n)
        });
    }
    Ok(())
}

/// Whether the text begins with this letter, and what follows.
fn letter(text: &str, letter: char) -> (bool, &str) {
    let text = text.trim_start();
    match text.strip_prefix([letter, letter.to_ascii_uppercase()]) {
        Some(rest) => (true, rest),
        None => (false, text),
    }
}

fn known(topology: &Topology, cpu: usize) -> Result<usize, String> {
    match topology.cores().flatten().any(|&c| c == cpu) {
        true => Ok(cpu),
        false => Err(format!(
            "CPU {cpu} is not there, or this process may not run on it"
        )),
    }
}

fn of_node(topology: &Topology, id: usize) -> Result<Vec<usize>, String> {
    let node = topology.nodes.iter().find(|n| n.id == id);
    node.map(|n| n.cpus())
        .ok_or_else(|| format!("NUMA node {id} is not there, or has no CPU that this process may run on"))
}
