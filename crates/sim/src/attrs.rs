//! Specifications of the attributes of one file, as programs see them: permissions with the access
//! ACL, the modification time, the size, and one extended attribute. Each attribute is checked on
//! its own.

use wire::Errno;

use crate::linear::Spec;

/// The variable part of an access ACL: one named user, and the owning group. The permissions of the
/// owner, the mask and others come from the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Acl {
    /// The named user.
    pub user: u32,
    /// Its permissions.
    pub perm: u16,
    /// The permissions of the owning group.
    pub group: u16,
}

/// Version of the format of ACLs in extended attributes.
const ACL_VERSION: u32 = 2;
/// The tags of an ACL's entries, in their order: owner, named user, owning group, mask, others.
const TAGS: [u16; 5] = [1, 2, 4, 0x10, 0x20];
/// The id in entries that name no user or group.
const NO_ID: u32 = u32::MAX;

impl Acl {
    /// The extended attribute of a file with this ACL and mode.
    pub fn encode(self, mode: u32) -> Vec<u8> {
        let perms = [
            mode >> 6 & 7,
            self.perm.into(),
            self.group.into(),
            mode >> 3 & 7,
            mode & 7,
        ];
        let mut bytes = ACL_VERSION.to_le_bytes().to_vec();
        for (tag, perm) in TAGS.into_iter().zip(perms) {
            let id = if tag == TAGS[1] { self.user } else { NO_ID };
            bytes.extend(tag.to_le_bytes());
            bytes.extend((perm as u16).to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// The ACL and the mode of an extended attribute; `None` for bytes of another form.
    pub fn decode(bytes: &[u8]) -> Option<(Acl, u32)> {
        let (_, entries) = bytes.split_at_checked(4)?;
        let (entries, _) = entries.as_chunks::<8>();
        let perm = |i: usize| Some(u16::from_le_bytes([entries.get(i)?[2], entries.get(i)?[3]]));
        let id = entries.get(1)?.last_chunk::<4>()?;
        let acl = Acl {
            user: u32::from_le_bytes(*id),
            perm: perm(1)?,
            group: perm(2)?,
        };
        let mode = u32::from(perm(0)?) << 6 | u32::from(perm(3)?) << 3 | u32::from(perm(4)?);
        (acl.encode(mode) == bytes).then_some((acl, mode))
    }
}

/// Owner, mode and access ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Perm {
    /// The permission bits of the mode.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// The access ACL.
    pub acl: Option<Acl>,
}

/// A call on owner, mode and ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermCall {
    /// Sets the mode.
    Chmod(u32),
    /// Sets user and group.
    Chown(u32, u32),
    /// Sets the ACL, and thereby the mode.
    SetAcl(Acl, u32),
    /// Removes the ACL.
    RemoveAcl,
    /// Reads mode, user and group; these are the result.
    Stat(u32, (u32, u32)),
    /// Reads the ACL and the mode in it; these are the result.
    GetAcl(Option<(Acl, u32)>),
}

/// The specification of owner, mode and ACL.
pub struct PermSpec;

impl Spec for PermSpec {
    type State = Perm;
    type Call = PermCall;

    fn step(&self, perm: &Perm, call: &PermCall) -> Vec<Perm> {
        let same = |holds: bool| holds.then_some(*perm).into_iter().collect();
        match *call {
            PermCall::Chmod(mode) => vec![Perm { mode, ..*perm }],
            PermCall::Chown(uid, gid) => vec![Perm {
                owner: (uid, gid),
                ..*perm
            }],
            PermCall::SetAcl(acl, mode) => vec![Perm {
                mode,
                acl: Some(acl),
                ..*perm
            }],
            PermCall::RemoveAcl => vec![Perm { acl: None, ..*perm }],
            PermCall::Stat(mode, owner) => same((mode, owner) == (perm.mode, perm.owner)),
            PermCall::GetAcl(found) => same(found == perm.acl.map(|acl| (acl, perm.mode))),
        }
    }
}

/// A call on the modification time. The time is `None` if no program has set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeCall {
    /// Sets the time, seconds since 1970.
    Set(u64),
    /// Changes data. The file then no longer has a time that a program set.
    Touch,
    /// Reads the time.
    Seen(Option<u64>),
}

/// The specification of the modification time.
pub struct TimeSpec;

impl Spec for TimeSpec {
    type State = Option<u64>;
    type Call = TimeCall;

    fn step(&self, state: &Option<u64>, call: &TimeCall) -> Vec<Option<u64>> {
        match *call {
            TimeCall::Set(time) => vec![Some(time)],
            TimeCall::Touch => vec![None],
            TimeCall::Seen(time) => (time == *state).then_some(time).into_iter().collect(),
        }
    }
}

/// A call on the size, which counts in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeCall {
    /// Writes data that ends at this offset.
    Reach(u64),
    /// Appends at an offset a number of bytes. `None`: the call failed, so its offset is unknown.
    Append(Option<u64>, u64),
    /// Truncates or extends.
    Cut(u64),
    /// Reads the size.
    Seen(u64),
}

/// The specification of the size.
pub struct SizeSpec;

impl Spec for SizeSpec {
    type State = u64;
    type Call = SizeCall;

    fn step(&self, size: &u64, call: &SizeCall) -> Vec<u64> {
        match *call {
            SizeCall::Reach(end) => vec![end.max(*size)],
            SizeCall::Append(at, len) if at.is_none_or(|at| at == *size) => vec![size + len],
            SizeCall::Cut(size) => vec![size],
            SizeCall::Seen(seen) if seen == *size => vec![seen],
            SizeCall::Append(..) | SizeCall::Seen(_) => Vec::new(),
        }
    }
}

/// The condition under which a set of an extended attribute succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// None.
    Always,
    /// `XATTR_CREATE`: the attribute is missing.
    Missing,
    /// `XATTR_REPLACE`: the attribute exists.
    Present,
}

/// A call on an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrCall {
    /// Sets a value.
    Set(Condition, u64),
    /// Reads the value.
    Get,
    /// Removes the attribute.
    Remove,
    /// Lists the file's attributes.
    List,
}

/// The result of a call on an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrOutcome {
    /// Success.
    Done,
    /// The value; `None` if the attribute is missing.
    Value(Option<u64>),
    /// Whether the attribute is in the list.
    Listed(bool),
    /// An error after which nothing has changed.
    Failed(Errno),
}

/// The specification of an extended attribute.
pub struct XattrSpec;

impl Spec for XattrSpec {
    type State = Option<u64>;
    type Call = (XattrCall, XattrOutcome);

    fn step(&self, state: &Option<u64>, (call, outcome): &(XattrCall, XattrOutcome)) -> Vec<Option<u64>> {
        use XattrOutcome::{Done, Failed, Listed, Value};
        let planned = match *call {
            XattrCall::Set(Condition::Missing, _) if state.is_some() => Err(Errno::EEXIST),
            XattrCall::Set(Condition::Present, _) | XattrCall::Remove if state.is_none() => {
                Err(Errno::ENODATA)
            }
            XattrCall::Set(_, value) => Ok(Some(value)),
            XattrCall::Remove => Ok(None),
            XattrCall::Get | XattrCall::List => Ok(*state),
        };
        match (planned, *outcome) {
            (Ok(_), Value(value)) if value != *state => Vec::new(),
            (Ok(_), Listed(listed)) if listed != state.is_some() => Vec::new(),
            (Ok(next), Done | Value(_) | Listed(_)) => vec![next],
            (Err(errno), Failed(failed)) if errno == failed => vec![*state],
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::linear::{Timed, Verdict, check};
    use crate::register::{Event, Recovered, Saved};

    fn is_linear<S: Spec<Call: Clone>>(spec: S, initial: S::State, events: &[Event<S::Call>]) -> bool {
        let timed = |(i, event): (usize, &Event<S::Call>)| Timed {
            call: event.clone(),
            start: 2 * i as u64,
            end: 2 * i as u64 + 1,
            definite: true,
        };
        let history: Vec<_> = events.iter().enumerate().map(timed).collect();
        let spec = Recovered { spec, crashes: true };
        check(&spec, Saved::new(initial), &history, 1000) == Verdict::Linear
    }

    const ACL: Acl = Acl {
        user: 1000,
        perm: 6,
        group: 4,
    };

    #[test]
    fn an_acl_survives_its_encoding_and_other_bytes_are_none() {
        let bytes = ACL.encode(0o751);
        assert_eq!(Acl::decode(&bytes), Some((ACL, 0o751)));
        for cut in 0..bytes.len() {
            assert_eq!(Acl::decode(&bytes[..cut]), None);
        }
    }

    #[test]
    fn a_mode_is_part_of_the_acl() {
        use PermCall::{Chmod, GetAcl, RemoveAcl, SetAcl, Stat};
        let first = Perm {
            mode: 0o644,
            owner: (0, 0),
            acl: None,
        };
        for (calls, expected) in [
            (vec![Stat(0o644, (0, 0)), GetAcl(None)], true),
            (vec![SetAcl(ACL, 0o750), Stat(0o750, (0, 0))], true),
            (
                vec![SetAcl(ACL, 0o750), Chmod(0o700), GetAcl(Some((ACL, 0o700)))],
                true,
            ),
            (vec![SetAcl(ACL, 0o750), GetAcl(None)], false),
            (vec![SetAcl(ACL, 0o750), RemoveAcl, Stat(0o644, (0, 0))], false),
        ] {
            let events: Vec<_> = calls.into_iter().map(Event::Call).collect();
            assert_eq!(is_linear(PermSpec, first, &events), expected, "{events:?}");
        }
    }

    #[test]
    fn an_append_is_at_the_end() {
        use SizeCall::{Append, Cut, Reach, Seen};
        for (calls, expected) in [
            (vec![Reach(2), Append(Some(2), 3), Seen(5)], true),
            (vec![Reach(2), Append(Some(0), 3)], false),
            (vec![Reach(2), Cut(9), Reach(3), Seen(9)], true),
            (vec![Append(None, 4), Append(None, 4), Seen(4)], false),
        ] {
            let events: Vec<_> = calls.into_iter().map(Event::Call).collect();
            assert_eq!(is_linear(SizeSpec, 0, &events), expected, "{events:?}");
        }
    }

    #[test]
    fn a_crash_returns_to_a_state_since_the_last_sync() {
        use TimeCall::{Seen, Set, Touch};
        let call = Event::Call;
        let lost = [call(Set(1)), Event::Crash, call(Seen(None))];
        let synced = [call(Set(1)), Event::Sync, Event::Crash, call(Seen(None))];
        let touched = [call(Set(1)), call(Touch), call(Seen(Some(1)))];
        for (events, expected) in [(&lost[..], true), (&synced[..], false), (&touched[..], false)] {
            assert_eq!(is_linear(TimeSpec, None, events), expected, "{events:?}");
        }
    }

    #[test]
    fn flags_of_a_set_depend_on_the_attribute() {
        use XattrOutcome::{Done, Failed, Listed, Value};
        let set = |condition, outcome| Event::Call((XattrCall::Set(condition, 7), outcome));
        let get = |value| Event::Call((XattrCall::Get, Value(value)));
        let listed = |listed| Event::Call((XattrCall::List, Listed(listed)));
        let replaced = set(Condition::Present, Failed(Errno::ENODATA));
        for (events, expected) in [
            (
                vec![set(Condition::Always, Done), get(Some(7)), listed(true)],
                true,
            ),
            (
                vec![replaced.clone(), set(Condition::Missing, Done), listed(true)],
                true,
            ),
            (vec![set(Condition::Missing, Done), replaced], false),
            (vec![set(Condition::Always, Done), get(None)], false),
            (vec![listed(true)], false),
        ] {
            assert_eq!(is_linear(XattrSpec, None, &events), expected, "{events:?}");
        }
    }
}
