//! Credentials of a caller, which each metadata request carries.
//!
//! A Lustre request carries one user, one group, capabilities and at most two supplementary groups.
//! A server without an identity database knows no other groups of the user. So the client selects
//! the group on which the server's permission check depends, usually the file's group. It sends
//! this group only if the caller is a member: [`Cred::suppgid`].

use std::sync::Arc;

/// No supplementary group.
pub(crate) const NO_GROUP: u32 = u32::MAX;

/// The Linux capabilities that a server honours, as bits: `CAP_CHOWN`, `DAC_OVERRIDE`,
/// `DAC_READ_SEARCH`, `FOWNER`, `FSETID`, `LINUX_IMMUTABLE`, `SYS_ADMIN`, `SYS_RESOURCE`, `MKNOD`.
const CAP_FS_MASK: u32 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 9 | 1 << 21 | 1 << 24 | 1 << 27;

/// A caller's supplementary groups: known, or looked up on demand.
#[derive(Clone)]
pub enum Groups {
    /// The group IDs.
    Known(Arc<[u32]>),
    /// Looks up the group IDs. The client calls it only when a decision depends on them.
    Lazy(Arc<dyn Fn() -> Arc<[u32]> + Send + Sync>),
}

impl Groups {
    /// All groups; looks them up if necessary.
    pub(crate) fn all(&self) -> Arc<[u32]> {
        match self {
            Groups::Known(groups) => groups.clone(),
            Groups::Lazy(look_up) => look_up(),
        }
    }
}

impl Default for Groups {
    fn default() -> Self {
        Groups::Known(Arc::from([]))
    }
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Groups::Known(groups) => f.debug_list().entries(groups.iter()).finish(),
            Groups::Lazy(_) => f.write_str("looked up when needed"),
        }
    }
}

/// The caller of an operation.
#[derive(Clone, Debug, Default)]
pub struct Cred {
    /// User ID.
    pub uid: u32,
    /// Primary group ID.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Groups,
    /// ID of the calling task or process; 0 if unknown.
    pub pid: u32,
    /// Permission bits to remove from a new file's mode. The server removes them unless the
    /// directory has a default ACL.
    pub umask: u32,
}

impl Cred {
    /// The superuser.
    pub fn root() -> Cred {
        Cred::default()
    }

    /// A user without supplementary groups.
    pub fn user(uid: u32, gid: u32) -> Cred {
        Cred {
            uid,
            gid,
            ..Cred::default()
        }
    }

    /// The capabilities to send: all for the superuser, none for others.
    pub(crate) fn cap(&self) -> u32 {
        if self.uid == 0 { CAP_FS_MASK } else { 0 }
    }

    /// `gid` if the caller has it as a supplementary group; else [`NO_GROUP`]. Also [`NO_GROUP`]
    /// for the superuser and for the primary group, which need no supplementary group.
    pub(crate) fn suppgid(&self, gid: u32) -> u32 {
        if self.uid == 0 || gid == self.gid || gid == NO_GROUP {
            return NO_GROUP;
        }
        if self.groups.all().contains(&gid) {
            gid
        } else {
            NO_GROUP
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cred, Groups, NO_GROUP};
    use std::sync::Arc;

    #[test]
    fn a_group_is_sent_only_if_it_is_a_supplementary_group_of_the_caller() {
        let cred = Cred {
            groups: Groups::Known(Arc::from([7, 8])),
            ..Cred::user(1, 1)
        };
        assert_eq!(cred.suppgid(8), 8);
        assert_eq!(cred.suppgid(9), NO_GROUP);
        assert_eq!(cred.suppgid(1), NO_GROUP);
    }

    #[test]
    fn groups_are_not_looked_up_for_the_superuser_or_the_primary_group() {
        let never = Groups::Lazy(Arc::new(|| unreachable!("not needed")));
        assert_eq!(
            Cred {
                groups: never.clone(),
                ..Cred::root()
            }
            .suppgid(5),
            NO_GROUP
        );
        assert_eq!(
            Cred {
                groups: never,
                ..Cred::user(1, 5)
            }
            .suppgid(5),
            NO_GROUP
        );
    }

    #[test]
    fn only_the_superuser_has_capabilities() {
        assert_ne!(Cred::root().cap(), 0);
        assert_eq!(Cred::user(1, 1).cap(), 0);
    }
}
