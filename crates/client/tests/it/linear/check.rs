//! Checks that a history of one directory is linearizable: that its operations have an order, each
//! placed between its start and end, in which every result is right.
//!
//! The search uses the algorithm of Wing and Gong with memoization (Lowe). Operations that share no
//! name and no file are checked separately. A listing counts as one lookup of each name, each at
//! its own moment during the listing. So the listing must have each name that exists during the
//! whole listing. It must not have a name that exists at no moment of the listing. It may have any
//! other name.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use wire::{Errno, Fid};

use super::history::{Answer, Event, File, Op};

/// The file of each name.
type Names = Vec<Option<File>>;

/// The directory of a history.
pub struct Directory<'a> {
    /// Number of names, all absent at the start.
    pub names: usize,
    /// Files with a permanent name in another directory.
    pub elsewhere: &'a [Fid],
}

impl Directory<'_> {
    /// Checks that a history is linearizable; describes the fault otherwise.
    pub fn check(&self, events: &[Event]) -> Result<(), String> {
        self.parts(events)
            .iter()
            .try_for_each(|part| Search::new(self, part).run())
    }

    /// Splits the events into parts that share names or files, each sorted by start.
    fn parts<'e>(&self, events: &'e [Event]) -> Vec<Vec<&'e Event>> {
        // A union-find forest. Its nodes are first the names, then the files as they appear.
        let mut files = HashMap::new();
        let mut parents: Vec<usize> = (0..self.names).collect();
        let mut first_nodes = Vec::new();
        for event in events {
            let mut event_nodes = event.op.names().collect::<Vec<_>>();
            for fid in event.files() {
                event_nodes.push(*files.entry(fid).or_insert_with(|| {
                    parents.push(parents.len());
                    parents.len() - 1
                }));
            }
            for pair in event_nodes.windows(2) {
                let (one_root, other_root) = (root(&parents, pair[0]), root(&parents, pair[1]));
                parents[one_root] = other_root;
            }
            first_nodes.push(event_nodes[0]);
        }
        let mut parts: HashMap<usize, Vec<&Event>> = HashMap::new();
        for (event, node) in events.iter().zip(first_nodes) {
            parts.entry(root(&parents, node)).or_default().push(event);
        }
        let mut parts: Vec<_> = parts.into_values().collect();
        parts.iter_mut().for_each(|p| p.sort_by_key(|e| e.start));
        parts.sort_by_key(|p| p[0].start);
        parts
    }

    /// The link count of a file.
    fn links(&self, names: &Names, fid: Fid) -> u32 {
        let here = names.iter().flatten().filter(|f| f.fid == fid).count();
        (here + usize::from(self.elsewhere.contains(&fid))) as u32
    }

    /// The names after an event; `None`: the event's result is wrong for these names.
    fn after(&self, names: &Names, event: &Event) -> Option<Names> {
        let with = |name: usize, file: Option<File>| {
            let mut names = names.clone();
            names[name] = file;
            names
        };
        let unchanged = |right: bool| right.then(|| names.clone());
        let creates = |name: usize, file: File, dir: bool| {
            let is_new = names[name].is_none() && file.dir == dir && self.links(names, file.fid) == 0;
            is_new.then(|| with(name, Some(file)))
        };
        let is_dir = |name: usize| names[name].map(|f| f.dir);
        match (event.op, event.answer) {
            (Op::Create { name, excl: false }, Answer::Is(file)) if names[name] == Some(file) => {
                unchanged(!file.dir)
            }
            (Op::Create { name, .. } | Op::Mknod { name }, Answer::Is(file)) => creates(name, file, false),
            (Op::Mkdir { name }, Answer::Is(file)) => creates(name, file, true),
            (Op::Create { name, excl: false }, Answer::Failed(Errno::EISDIR)) => {
                unchanged(is_dir(name) == Some(true))
            }
            (Op::Create { name, excl: true }, Answer::Failed(Errno::EEXIST))
            | (Op::Mknod { name } | Op::Mkdir { name }, Answer::Failed(Errno::EEXIST))
            | (Op::Link { name, .. }, Answer::Failed(Errno::EEXIST)) => unchanged(names[name].is_some()),
            (Op::Link { file, name }, Answer::Done) => {
                let is_allowed = names[name].is_none() && self.links(names, file.fid) > 0;
                is_allowed.then(|| with(name, Some(file)))
            }
            (Op::Link { file, .. } | Op::Getattr { file }, Answer::Failed(Errno::ENOENT | Errno::ESTALE)) => {
                unchanged(self.links(names, file.fid) == 0)
            }
            (Op::Getattr { file }, Answer::Links(count)) => {
                let links = self.links(names, file.fid);
                unchanged(count == if file.dir { links * 2 } else { links })
            }
            (Op::Unlink { name }, Answer::Done) => (is_dir(name) == Some(false)).then(|| with(name, None)),
            (Op::Rmdir { name }, Answer::Done) => (is_dir(name) == Some(true)).then(|| with(name, None)),
            (Op::Unlink { name }, Answer::Failed(Errno::EISDIR)) => unchanged(is_dir(name) == Some(true)),
            (Op::Rmdir { name }, Answer::Failed(Errno::ENOTDIR)) => unchanged(is_dir(name) == Some(false)),
            (
                Op::Unlink { name } | Op::Rmdir { name } | Op::Rename { from: name, .. },
                Answer::Failed(Errno::ENOENT),
            )
            | (Op::Lookup { name } | Op::Listed { name }, Answer::Failed(Errno::ENOENT)) => {
                unchanged(names[name].is_none())
            }
            (Op::Lookup { name } | Op::Listed { name }, Answer::Is(file)) => {
                unchanged(names[name] == Some(file))
            }
            (Op::Rename { from, to }, answer) => {
                let file = names[from]?;
                let replaced = names[to];
                let type_error = replaced.filter(|r| r.dir != file.dir).map(|r| match r.dir {
                    true => Errno::EISDIR,
                    false => Errno::ENOTDIR,
                });
                match (type_error, answer) {
                    (Some(expected), Answer::Failed(errno)) => unchanged(errno == expected),
                    // A rename between two names of one file changes nothing.
                    (None, Answer::Done) if replaced == Some(file) => unchanged(true),
                    (None, Answer::Done) => {
                        let mut names = with(from, None);
                        names[to] = Some(file);
                        Some(names)
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// The root of a node's tree.
fn root(parents: &[usize], mut node: usize) -> usize {
    while parents[node] != node {
        node = parents[node];
    }
    node
}

/// For each event of a part: whether the search has placed the event in the order.
type Placed = Vec<bool>;

struct Search<'a> {
    directory: &'a Directory<'a>,
    /// Sorted by start.
    events: &'a [&'a Event],
}

impl<'a> Search<'a> {
    fn new(directory: &'a Directory<'a>, events: &'a [&'a Event]) -> Search<'a> {
        Search { directory, events }
    }

    /// Searches for an order of all events. If there is none, reports the longest order found.
    fn run(&self) -> Result<(), String> {
        let start = (vec![false; self.events.len()], vec![None; self.directory.names]);
        let mut best = (0, start.clone());
        let (mut visited, mut stack) = (HashSet::from([start.clone()]), vec![start]);
        while let Some((placed, names)) = stack.pop() {
            let count = placed.iter().filter(|p| **p).count();
            if count == self.events.len() {
                return Ok(());
            }
            if count > best.0 {
                best = (count, (placed.clone(), names.clone()));
            }
            for next in self.next_steps(&placed, &names) {
                if visited.insert(next.clone()) {
                    stack.push(next);
                }
            }
        }
        Err(self.report(&best.1))
    }

    /// The possible next steps: events that started before every other remaining event ended, with
    /// the right result.
    fn next_steps(&self, placed: &Placed, names: &Names) -> Vec<(Placed, Names)> {
        let mut steps = Vec::new();
        let mut first_end = u64::MAX;
        for (i, event) in self.events.iter().enumerate().filter(|(i, _)| !placed[*i]) {
            if event.start > first_end {
                break;
            }
            first_end = first_end.min(event.end);
            if let Some(after) = self.directory.after(names, event) {
                let mut placed = placed.clone();
                placed[i] = true;
                if event.is_read_only() {
                    // A read-only event with the right result can be placed at once: it changes
                    // nothing for the other events.
                    return vec![(placed, after)];
                }
                steps.push((placed, after));
            }
        }
        steps
    }

    /// Lists the events, and marks those that the longest order found does not contain.
    fn report(&self, (placed, names): &(Placed, Names)) -> String {
        let mut report = String::from("not linearizable; * could not be put in order:\n");
        for (event, is_placed) in self.events.iter().zip(placed) {
            let mark = if *is_placed { ' ' } else { '*' };
            let _ = writeln!(report, "{mark} {event}");
        }
        let _ = writeln!(report, "the names after the ordered events: {names:?}");
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: File = File {
        fid: Fid::new(0x2_0000_0401, 1, 0),
        dir: false,
    };
    const B: File = File {
        fid: Fid::new(0x2_0000_0401, 2, 0),
        dir: false,
    };
    const D: File = File {
        fid: Fid::new(0x2_0000_0401, 3, 0),
        dir: true,
    };
    const ABSENT: Answer = Answer::Failed(Errno::ENOENT);

    fn event(start: u64, end: u64, op: Op, answer: Answer) -> Event {
        Event {
            start,
            end,
            task: 0,
            op,
            answer,
        }
    }

    /// Events of these operations, one after the other.
    fn sequential(operations: &[(Op, Answer)]) -> Vec<Event> {
        let to_event = |(i, (op, answer)): (u64, &(Op, Answer))| event(2 * i, 2 * i + 1, *op, *answer);
        (0..).zip(operations).map(to_event).collect()
    }

    fn is_linearizable(events: &[Event]) -> bool {
        let directory = Directory {
            names: 3,
            elsewhere: &[],
        };
        directory.check(events).is_ok()
    }

    fn mknod(name: usize, file: File) -> (Op, Answer) {
        (Op::Mknod { name }, Answer::Is(file))
    }

    #[test]
    fn sequential_results_must_match_the_state() {
        let lookup = |name| Op::Lookup { name };
        let good = [
            (lookup(0), ABSENT),
            mknod(0, A),
            (Op::Mknod { name: 0 }, Answer::Failed(Errno::EEXIST)),
            (lookup(0), Answer::Is(A)),
            (Op::Link { file: A, name: 1 }, Answer::Done),
            (Op::Getattr { file: A }, Answer::Links(2)),
            (Op::Rename { from: 0, to: 1 }, Answer::Done),
            (lookup(0), Answer::Is(A)),
            (Op::Unlink { name: 0 }, Answer::Done),
            (Op::Mkdir { name: 2 }, Answer::Is(D)),
            (Op::Rename { from: 2, to: 1 }, Answer::Failed(Errno::ENOTDIR)),
            (Op::Rename { from: 1, to: 2 }, Answer::Failed(Errno::EISDIR)),
            (Op::Unlink { name: 2 }, Answer::Failed(Errno::EISDIR)),
            (Op::Rmdir { name: 1 }, Answer::Failed(Errno::ENOTDIR)),
            (Op::Create { name: 2, excl: false }, Answer::Failed(Errno::EISDIR)),
            (Op::Rmdir { name: 2 }, Answer::Done),
            (Op::Create { name: 1, excl: false }, Answer::Is(A)),
            (Op::Rename { from: 1, to: 2 }, Answer::Done),
            (Op::Unlink { name: 2 }, Answer::Done),
            (Op::Getattr { file: A }, ABSENT),
            (Op::Create { name: 2, excl: true }, Answer::Is(B)),
        ];
        assert!(is_linearizable(&sequential(&good)));
        for (fault, bad) in [
            (
                "an existing name not found",
                vec![mknod(0, A), (lookup(0), ABSENT)],
            ),
            (
                "the name leads to another file",
                vec![mknod(0, A), (lookup(0), Answer::Is(B))],
            ),
            ("an absent name found", vec![(lookup(0), Answer::Is(A))]),
            ("created twice", vec![mknod(0, A), mknod(0, B)]),
            ("one file created under two names", vec![mknod(0, A), mknod(1, A)]),
            (
                "mkdir created a file",
                vec![(Op::Mkdir { name: 0 }, Answer::Is(A))],
            ),
            (
                "removed twice",
                vec![
                    mknod(0, A),
                    (Op::Unlink { name: 0 }, Answer::Done),
                    (Op::Unlink { name: 0 }, Answer::Done),
                ],
            ),
            (
                "still under its old name",
                vec![
                    mknod(0, A),
                    (Op::Rename { from: 0, to: 1 }, Answer::Done),
                    (lookup(0), Answer::Is(A)),
                ],
            ),
            (
                "not under its new name",
                vec![
                    mknod(0, A),
                    (Op::Rename { from: 0, to: 1 }, Answer::Done),
                    (lookup(1), ABSENT),
                ],
            ),
            (
                "linked after its removal",
                vec![
                    mknod(0, A),
                    (Op::Unlink { name: 0 }, Answer::Done),
                    (Op::Link { file: A, name: 1 }, Answer::Done),
                ],
            ),
            (
                "a wrong link count",
                vec![mknod(0, A), (Op::Getattr { file: A }, Answer::Links(2))],
            ),
            ("not listed", vec![mknod(0, A), (Op::Listed { name: 0 }, ABSENT)]),
            (
                "an unexplained errno",
                vec![(lookup(0), Answer::Failed(Errno::EIO))],
            ),
        ] {
            assert!(!is_linearizable(&sequential(&bad)), "{fault}");
        }
    }

    #[test]
    fn overlapping_operations_may_have_any_order() {
        let (op, answer) = mknod(0, A);
        for seen in [ABSENT, Answer::Is(A)] {
            let lookup = event(2, 3, Op::Lookup { name: 0 }, seen);
            assert!(is_linearizable(&[event(1, 4, op, answer), lookup]));
        }
        // But after a lookup has seen the name, a later lookup must find it.
        let lookup = |start, seen| event(start, start + 1, Op::Lookup { name: 0 }, seen);
        let creation = event(1, 10, op, answer);
        assert!(is_linearizable(&[
            creation,
            lookup(2, ABSENT),
            lookup(4, Answer::Is(A))
        ]));
        assert!(!is_linearizable(&[
            creation,
            lookup(2, Answer::Is(A)),
            lookup(4, ABSENT)
        ]));
    }

    #[test]
    fn a_name_that_is_replaced_is_never_absent() {
        let before = sequential(&[mknod(0, A), mknod(1, B)]);
        let replaced = event(10, 20, Op::Rename { from: 1, to: 0 }, Answer::Done);
        let seen = |seen| event(11, 12, Op::Lookup { name: 0 }, seen);
        for (answer, is_possible) in [(Answer::Is(A), true), (Answer::Is(B), true), (ABSENT, false)] {
            let all = [&before[..], &[replaced, seen(answer)]].concat();
            assert_eq!(is_linearizable(&all), is_possible, "{answer:?}");
        }
    }

    #[test]
    fn a_rename_between_names_of_one_file_may_take_effect_after_an_unlink() {
        let before = sequential(&[mknod(0, A), (Op::Link { file: A, name: 1 }, Answer::Done)]);
        let renamed = event(10, 20, Op::Rename { from: 0, to: 1 }, Answer::Done);
        let removed = event(11, 12, Op::Unlink { name: 1 }, Answer::Done);
        let lookup = |start, name, seen| event(start, start + 1, Op::Lookup { name }, seen);
        let moved = [lookup(30, 0, ABSENT), lookup(32, 1, Answer::Is(A))];
        assert!(is_linearizable(
            &[&before[..], &[renamed, removed], &moved].concat()
        ));
    }

    #[test]
    fn two_removals_of_one_name_cannot_both_succeed() {
        let before = sequential(&[mknod(0, A)]);
        let removed = |start, answer| event(start, start + 9, Op::Unlink { name: 0 }, answer);
        let both = |other| [&before[..], &[removed(10, Answer::Done), removed(11, other)]].concat();
        assert!(is_linearizable(&both(ABSENT)));
        assert!(!is_linearizable(&both(Answer::Done)));
    }

    #[test]
    fn a_file_with_a_name_elsewhere_is_never_removed() {
        let removed = sequential(&[
            (Op::Link { file: A, name: 0 }, Answer::Done),
            (Op::Unlink { name: 0 }, Answer::Done),
            (Op::Getattr { file: A }, ABSENT),
        ]);
        let directory = Directory {
            names: 1,
            elsewhere: &[A.fid],
        };
        assert!(directory.check(&removed[..2]).is_ok());
        assert!(directory.check(&removed).is_err());
    }
}
