//! The parts of a target in which a client may hold locks, open files or uncommitted changes.
//!
//! Pure. A set is conservative: it may have parts in which the client holds nothing. After a
//! restart it stands for the locks of a client that has not reconnected, so that the target can
//! serve new clients elsewhere (docs/protocol.md, "Recovery"). A set has few marks: after
//! [`MEMBERS_MAX`] members of a group it has the whole group, and after [`GROUPS_MAX`] groups
//! everything.

use std::collections::BTreeMap;

/// Maximum number of members of a group that a set has one by one.
const MEMBERS_MAX: usize = 64;
/// Maximum number of groups that a set has one by one.
const GROUPS_MAX: usize = 1024;

/// A part of a target: an inode of an MDT, some neighbouring objects of an OST.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The group: a sequence of FIDs, or a part of one.
    pub group: u64,
    /// The part within the group; below [`Mark::ALL_MEMBERS`].
    pub member: u32,
    /// Whether the part was made after the start of the target, so that no client of an earlier
    /// start holds anything in it.
    pub is_new: bool,
}

/// A kind of access to a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// It keeps what it has read: it has a lock for reading, or a file open for reading.
    Read,
    /// It changes the part: it has a lock or an open file for writing, or an uncommitted change.
    Write,
}

/// One entry of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// The kind of access.
    pub access: Access,
    /// The group, or [`Mark::ALL_GROUPS`].
    pub group: u64,
    /// The part, or [`Mark::ALL_MEMBERS`].
    pub member: u32,
}

impl Mark {
    /// Stands for all groups.
    pub const ALL_GROUPS: u64 = u64::MAX;
    /// Stands for all members of a group.
    pub const ALL_MEMBERS: u32 = u32::MAX;

    /// A mark of a whole group.
    pub fn whole(access: Access, group: u64) -> Mark {
        Mark {
            access,
            group,
            member: Mark::ALL_MEMBERS,
        }
    }
}

/// Members of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Members {
    All,
    /// Sorted.
    Some(Vec<u32>),
}

impl Members {
    fn contains(&self, member: u32) -> bool {
        match self {
            Members::All => true,
            Members::Some(members) => members.binary_search(&member).is_ok(),
        }
    }
}

/// The parts for one kind of access.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Parts {
    everything: bool,
    groups: BTreeMap<u64, Members>,
}

impl Parts {
    fn contains(&self, part: &Part) -> bool {
        let of_group = || self.groups.get(&part.group);
        self.everything || of_group().is_some_and(|members| members.contains(part.member))
    }

    fn add(&mut self, group: u64, member: u32) {
        if group == Mark::ALL_GROUPS {
            self.groups.clear();
            self.everything = true;
        }
        if self.everything {
            return;
        }
        let members = self
            .groups
            .entry(group)
            .or_insert_with(|| Members::Some(Vec::new()));
        match members {
            Members::All => {}
            some if member == Mark::ALL_MEMBERS => *some = Members::All,
            Members::Some(members) => {
                if let Err(place) = members.binary_search(&member) {
                    members.insert(place, member);
                }
            }
        }
    }

    /// The entry to add for a part: the part, or more if the set has many entries already.
    fn entry_for(&self, part: &Part) -> (u64, u32) {
        match self.groups.get(&part.group) {
            None if self.groups.len() >= GROUPS_MAX => (Mark::ALL_GROUPS, Mark::ALL_MEMBERS),
            Some(Members::Some(members)) if members.len() >= MEMBERS_MAX => (part.group, Mark::ALL_MEMBERS),
            _ => (part.group, part.member),
        }
    }

    fn entries(&self) -> Vec<(u64, u32)> {
        if self.everything {
            return vec![(Mark::ALL_GROUPS, Mark::ALL_MEMBERS)];
        }
        let of_group = |(group, members): (&u64, &Members)| {
            let members = match members {
                Members::All => vec![Mark::ALL_MEMBERS],
                Members::Some(members) => members.clone(),
            };
            members
                .into_iter()
                .map(|member| (*group, member))
                .collect::<Vec<_>>()
        };
        self.groups.iter().flat_map(of_group).collect()
    }
}

/// The parts in which a client may hold something.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holdings {
    read: Parts,
    write: Parts,
}

impl Holdings {
    /// Adds an entry.
    pub fn add(&mut self, mark: Mark) {
        self.parts_mut(mark.access).add(mark.group, mark.member);
    }

    /// Adds a part, or more if the set has many entries already.
    pub fn add_part(&mut self, part: &Part, access: Access) {
        if !self.covers(part, access) {
            self.add(self.mark_for(part, access));
        }
    }

    /// Whether the set has the part for this access. A set that has it for writing has it for
    /// reading, too.
    pub fn covers(&self, part: &Part, access: Access) -> bool {
        self.write.contains(part) || (access == Access::Read && self.read.contains(part))
    }

    /// Whether another client must not get this access to the part while the owner of the set
    /// may hold what the set has.
    pub fn excludes(&self, part: &Part, access: Access) -> bool {
        !part.is_new && (self.write.contains(part) || (access == Access::Write && self.read.contains(part)))
    }

    /// The entry that adds a part: the part, or more if the set has many entries already.
    pub fn mark_for(&self, part: &Part, access: Access) -> Mark {
        let parts = match access {
            Access::Read => &self.read,
            Access::Write => &self.write,
        };
        let (group, member) = parts.entry_for(part);
        Mark {
            access,
            group,
            member,
        }
    }

    /// The entries for which this one stands.
    pub fn replaced_by(&self, mark: Mark) -> Vec<Mark> {
        if mark.member != Mark::ALL_MEMBERS {
            return Vec::new();
        }
        let stands_for = |m: &Mark| {
            m.access == mark.access && *m != mark && (mark.group == Mark::ALL_GROUPS || m.group == mark.group)
        };
        self.marks().into_iter().filter(stands_for).collect()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        *self == Holdings::default()
    }

    /// The entries.
    pub fn marks(&self) -> Vec<Mark> {
        let sides = [(Access::Read, &self.read), (Access::Write, &self.write)];
        let of_side = |(access, parts): (Access, &Parts)| {
            let mark = move |(group, member)| Mark {
                access,
                group,
                member,
            };
            parts.entries().into_iter().map(mark)
        };
        sides.into_iter().flat_map(of_side).collect()
    }

    fn parts_mut(&mut self, access: Access) -> &mut Parts {
        match access {
            Access::Read => &mut self.read,
            Access::Write => &mut self.write,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Access, GROUPS_MAX, Holdings, MEMBERS_MAX, Mark, Part};

    fn part(group: u64, member: u32) -> Part {
        Part {
            group,
            member,
            is_new: false,
        }
    }

    #[test]
    fn readers_exclude_writers_and_writers_exclude_everybody() {
        let mut held = Holdings::default();
        held.add_part(&part(1, 1), Access::Read);
        held.add_part(&part(1, 2), Access::Write);
        let excluded = |member, access| held.excludes(&part(1, member), access);
        assert_eq!(
            [Access::Read, Access::Write].map(|a| excluded(1, a)),
            [false, true]
        );
        assert_eq!(
            [Access::Read, Access::Write].map(|a| excluded(2, a)),
            [true, true]
        );
        assert_eq!(
            [Access::Read, Access::Write].map(|a| excluded(3, a)),
            [false, false]
        );
        assert!(held.covers(&part(1, 2), Access::Read) && !held.covers(&part(1, 1), Access::Write));
        let new = Part {
            is_new: true,
            ..part(1, 2)
        };
        assert!(!held.excludes(&new, Access::Write));
    }

    #[test]
    fn many_members_become_the_group_and_many_groups_everything() {
        let mut held = Holdings::default();
        for member in 0..MEMBERS_MAX as u32 {
            held.add_part(&part(7, member), Access::Write);
        }
        assert!(!held.excludes(&part(7, 1000), Access::Read));
        held.add_part(&part(6, 1), Access::Write);
        let mark = held.mark_for(&part(7, 1000), Access::Write);
        assert_eq!(held.replaced_by(mark).len(), MEMBERS_MAX);
        held.add_part(&part(7, 1000), Access::Write);
        assert_eq!(held.marks()[1..], [Mark::whole(Access::Write, 7)]);
        assert!(held.excludes(&part(7, 1001), Access::Read));
        assert!(!held.excludes(&part(8, 1), Access::Write));
        for group in 0..=GROUPS_MAX as u64 {
            held.add_part(&part(group, 1), Access::Write);
        }
        assert_eq!(held.marks(), [Mark::whole(Access::Write, Mark::ALL_GROUPS)]);
        assert!(held.excludes(&part(u64::MAX - 1, 5), Access::Read));
    }

    #[test]
    fn entries_make_the_same_set_again() {
        let mut held = Holdings::default();
        held.add(Mark::whole(Access::Read, 3));
        for (group, member) in [(1, 5), (1, 4), (2, 0)] {
            held.add_part(&part(group, member), Access::Write);
        }
        let mut again = Holdings::default();
        held.marks().into_iter().for_each(|mark| again.add(mark));
        assert_eq!(again, held);
        assert!(!again.is_empty() && Holdings::default().is_empty());
    }
}
