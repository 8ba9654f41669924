//! The choice of a metadata target for a new directory: in turn, or by free space and inodes.
//!
//! The rules are those of Lustre's clients, without their memory of recent choices.

use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use wire::{
    LMV_INHERIT_NONE, LMV_INHERIT_RR_NONE, LMV_OFFSET_DEFAULT, LmvUserMdV1, OS_STATFS_NOCREATE, ObdStatfs,
};

/// How old the free space may be before the client asks again.
pub(crate) const SPACE_AGE_MAX: Duration = Duration::from_secs(60);

/// Targets count as equally full while the fullest has more than this part of the free space of the
/// emptiest, in percent.
const BALANCED_PERCENT: u128 = 95;

/// The free space of the targets when last asked.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    /// When the targets were asked.
    pub(crate) asked_at: Option<Instant>,
    /// By index. Targets that did not answer are missing.
    pub(crate) by_index: BTreeMap<u32, ObdStatfs>,
}

impl Spaces {
    /// Whether the client should ask again.
    pub(crate) fn is_old(&self, now: Instant) -> bool {
        self.asked_at
            .is_none_or(|at| now.saturating_duration_since(at) > SPACE_AGE_MAX)
    }

    /// Whether this target has said that it accepts no new files.
    pub(crate) fn is_full(&self, index: u32) -> bool {
        self.by_index
            .get(&index)
            .is_some_and(|space| space.os_state & OS_STATFS_NOCREATE != 0)
    }

    /// The target for a directory by free space. `None`: the space is unknown or balanced.
    /// `current`: the parent's target. `spread`: the directory need not stay there. `depth`: the
    /// number of directories above. `random`: a random number below its argument.
    pub(crate) fn choose(
        &self,
        current: u32,
        spread: bool,
        depth: u16,
        random: impl FnOnce(u128) -> u128,
    ) -> Option<u32> {
        let usable: Vec<(u32, u128)> = self
            .by_index
            .iter()
            .filter(|(index, _)| !self.is_full(**index))
            .map(|(index, space)| (*index, u128::from(blocks(space)) * u128::from(inodes(space))))
            .collect();
        if usable.len() < 2 || self.is_balanced() {
            return None;
        }
        let total: u128 = usable.iter().map(|(_, avail)| avail).sum();
        // A directory with much space, far below the root, stays with its parent: few directories
        // on other targets, near the root, balance as well as many.
        let enough = total * 16 / (usable.len() as u128 * (u128::from(depth) + 10));
        let at_current = usable.iter().find(|(index, _)| *index == current);
        if !spread && at_current.is_some_and(|(_, avail)| *avail >= enough) {
            return Some(current);
        }
        let chosen = random(total.max(1));
        let mut sum = 0;
        let mut by_weight = usable.iter().filter(|(_, avail)| {
            sum += avail;
            *avail > 0 && sum > chosen
        });
        by_weight.next().map(|(index, _)| *index)
    }

    /// Whether all targets have about the same free space and inodes.
    fn is_balanced(&self) -> bool {
        let balanced = |amount: fn(&ObdStatfs) -> u64| {
            let amounts = || self.by_index.values().map(amount);
            let (min, max) = (amounts().min().unwrap_or(0), amounts().max().unwrap_or(0));
            u128::from(max) * BALANCED_PERCENT / 100 <= u128::from(min)
        };
        balanced(blocks) && balanced(inodes)
    }
}

/// Free space, in units of 64 KiB.
fn blocks(space: &ObdStatfs) -> u64 {
    space.os_bavail.saturating_mul(space.os_bsize.into()) >> 16
}

/// Free inodes, in units of 256.
fn inodes(space: &ObdStatfs) -> u64 {
    space.os_ffree >> 8
}

/// The rule for a new directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// With its parent.
    Parent,
    /// On this target.
    Fixed(u32),
    /// By free space. `spread`: in turn while the space is balanced; otherwise with its parent.
    Space { spread: bool },
}

/// The directory in which a new directory is created.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parent<'a> {
    /// Whether the parent is striped.
    pub(crate) is_striped: bool,
    /// Whether the parent is the root.
    pub(crate) is_root: bool,
    /// The number of directories from the root to the parent; `None`: unknown.
    pub(crate) depth: Option<u16>,
    /// The parent's default layout.
    pub(crate) default: Option<&'a LmvUserMdV1>,
    /// The root's default layout.
    pub(crate) root_default: Option<&'a LmvUserMdV1>,
}

impl Placement {
    /// The rule for a new directory; `request`: the layout that the caller asks for.
    pub(crate) fn of(request: Option<&LmvUserMdV1>, parent: Parent<'_>) -> Placement {
        if let Some(request) = request {
            match request.lum_stripe_offset {
                LMV_OFFSET_DEFAULT if parent.is_striped => {}
                LMV_OFFSET_DEFAULT => return Placement::Space { spread: true },
                index => return Placement::Fixed(index),
            }
        }
        if let Some(default) = parent.default {
            return match default.lum_stripe_offset {
                LMV_OFFSET_DEFAULT if parent.is_striped => Placement::Parent,
                LMV_OFFSET_DEFAULT => Placement::Space {
                    spread: default.lum_max_inherit_rr != LMV_INHERIT_RR_NONE as u8 || parent.is_root,
                },
                index => Placement::Fixed(index),
            };
        }
        let Some(root) = parent
            .root_default
            .filter(|_| !parent.is_striped && !parent.is_root)
        else {
            return Placement::Parent;
        };
        let reaches = |levels: u8, unlimited: u8, none: u8| {
            levels != none
                && (levels == unlimited || parent.depth.is_some_and(|depth| u16::from(levels) > depth))
        };
        match root.lum_stripe_offset == LMV_OFFSET_DEFAULT
            && reaches(
                root.lum_max_inherit,
                wire::LMV_INHERIT_UNLIMITED as u8,
                LMV_INHERIT_NONE as u8,
            ) {
            true => Placement::Space {
                spread: reaches(
                    root.lum_max_inherit_rr,
                    wire::LMV_INHERIT_RR_UNLIMITED as u8,
                    LMV_INHERIT_RR_NONE as u8,
                ),
            },
            false => Placement::Parent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Parent, Placement, Spaces};
    use wire::{LMV_OFFSET_DEFAULT, LmvUserMdV1, OS_STATFS_NOCREATE, ObdStatfs};

    const GIB: u64 = 1 << 30;

    fn spaces(free_gib: &[u64]) -> Spaces {
        let space = |gib: &u64| ObdStatfs {
            os_bsize: 4096,
            os_bavail: gib * GIB / 4096,
            os_ffree: gib << 16,
            ..ObdStatfs::default()
        };
        Spaces {
            by_index: (0..).zip(free_gib.iter().map(space)).collect(),
            ..Spaces::default()
        }
    }

    #[test]
    fn balanced_targets_leave_the_choice_to_the_caller() {
        assert_eq!(spaces(&[]).choose(0, true, 0, |_| 0), None);
        assert_eq!(spaces(&[100]).choose(0, true, 0, |_| 0), None);
        assert_eq!(spaces(&[100, 97]).choose(0, true, 0, |_| 0), None);
        assert!(spaces(&[100, 90]).choose(0, true, 0, |_| 0).is_some());
    }

    #[test]
    fn the_chance_of_a_target_grows_with_its_free_space() {
        let spaces = spaces(&[10, 90, 0]);
        let choose = |of_1000: u128| spaces.choose(0, true, 0, |total| total * of_1000 / 1000);
        assert_eq!(choose(0), Some(0));
        // The weight is space times inodes: 100 to 8100.
        assert_eq!(choose(11), Some(0));
        assert_eq!((choose(13), choose(999)), (Some(1), Some(1)));
    }

    #[test]
    fn a_directory_stays_with_a_parent_that_has_much_space_the_more_the_deeper() {
        let spaces = spaces(&[100, 60]);
        assert_eq!(spaces.choose(0, false, 6, |total| total - 1), Some(0));
        assert_eq!(
            spaces.choose(1, false, 0, |_| 0),
            Some(0),
            "little space at the parent"
        );
        assert_eq!(spaces.choose(0, true, 6, |total| total - 1), Some(1), "spread");
    }

    #[test]
    fn a_target_that_accepts_no_new_files_is_not_chosen() {
        let mut spaces = spaces(&[10, 90, 40]);
        if let Some(space) = spaces.by_index.get_mut(&1) {
            space.os_state = OS_STATFS_NOCREATE;
        }
        assert!(spaces.is_full(1) && !spaces.is_full(0));
        for chosen in 0..10 {
            let choice = spaces.choose(0, true, 0, |total| total * chosen / 10);
            assert_ne!(choice, Some(1));
        }
    }

    fn layout(index: u32, max_inherit: u8, max_inherit_rr: u8) -> LmvUserMdV1 {
        LmvUserMdV1 {
            lum_stripe_offset: index,
            lum_max_inherit: max_inherit,
            lum_max_inherit_rr: max_inherit_rr,
            ..LmvUserMdV1::default()
        }
    }

    const ANY: u32 = LMV_OFFSET_DEFAULT;

    #[test]
    fn the_callers_request_comes_first_and_the_parents_default_second() {
        let default = layout(2, 0, 0);
        let parent = Parent {
            default: Some(&default),
            ..Parent::default()
        };
        let of = |request: Option<LmvUserMdV1>| Placement::of(request.as_ref(), parent);
        assert_eq!(of(Some(layout(1, 0, 0))), Placement::Fixed(1));
        assert_eq!(of(Some(layout(ANY, 0, 0))), Placement::Space { spread: true });
        assert_eq!(of(None), Placement::Fixed(2));
        let striped = Parent {
            is_striped: true,
            ..Parent::default()
        };
        assert_eq!(
            Placement::of(Some(&layout(ANY, 0, 0)), striped),
            Placement::Parent
        );
    }

    #[test]
    fn the_roots_default_applies_to_directories_without_one_down_to_its_depth() {
        // The root's default on a new file system: three levels in turn.
        let root = layout(ANY, 3, 3);
        let of = |depth, root: &LmvUserMdV1| {
            Placement::of(
                None,
                Parent {
                    depth,
                    root_default: Some(root),
                    ..Parent::default()
                },
            )
        };
        assert_eq!(of(Some(1), &root), Placement::Space { spread: true });
        assert_eq!(of(Some(2), &root), Placement::Space { spread: true });
        assert_eq!(of(Some(3), &root), Placement::Parent);
        assert_eq!(of(None, &root), Placement::Parent);
        assert_eq!(
            of(Some(2), &layout(ANY, 3, 2)),
            Placement::Space { spread: false }
        );
        assert_eq!(of(None, &layout(ANY, 0, 255)), Placement::Space { spread: true });
        assert_eq!(of(Some(1), &layout(ANY, 255, 255)), Placement::Parent);
        let at_root = Parent {
            is_root: true,
            depth: Some(0),
            default: Some(&root),
            root_default: Some(&root),
            ..Parent::default()
        };
        assert_eq!(Placement::of(None, at_root), Placement::Space { spread: true });
    }
}
