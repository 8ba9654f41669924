//! The stripes of a striped directory that may have a name.
//!
//! While the MDTs change the number of stripes or move a directory, a name is in its old or its new
//! stripe. If the hash type is unknown, a name is in any stripe.

use crate::consts::lmv::{
    LMV_HASH_FLAG_BAD_TYPE, LMV_HASH_FLAG_LAYOUT_CHANGE, LMV_HASH_FLAG_MERGE, LMV_HASH_FLAG_MIGRATION,
    LMV_HASH_FLAG_SPLIT, LMV_MAGIC_V1, LMV_MAX_STRIPE_COUNT,
};
use crate::dir_hash::stripe_of;
use crate::ids::Fid;
use crate::striping::LmvLayout;

impl LmvLayout {
    /// Whether a client can use the layout: it is a striped directory's own layout (not that of a
    /// stripe), it lists all stripes, and a change of the number of stripes keeps within them.
    pub fn is_usable(&self) -> bool {
        let count = self.head.lmv_stripe_count;
        self.head.lmv_magic == LMV_MAGIC_V1
            && (1..=LMV_MAX_STRIPE_COUNT).contains(&count)
            && self.stripes.len() == count as usize
            && (!self.is_changing() || (1..=count).contains(&self.head.lmv_migrate_offset))
    }

    /// Whether the MDTs are moving names to other stripes.
    pub fn is_changing(&self) -> bool {
        self.head.lmv_hash_type & LMV_HASH_FLAG_LAYOUT_CHANGE != 0
    }

    /// The stripe that gets a new name. `None`: the hash type is unknown, so no client creates
    /// names in the directory.
    pub fn stripe_for_new(&self, name: &[u8]) -> Option<Fid> {
        let head = &self.head;
        let (hash, count) = match () {
            () if self.has(LMV_HASH_FLAG_MERGE) => (head.lmv_migrate_hash, head.lmv_migrate_offset),
            () if self.has(LMV_HASH_FLAG_MIGRATION) => (head.lmv_hash_type, head.lmv_migrate_offset),
            () => (head.lmv_hash_type, head.lmv_stripe_count),
        };
        self.stripe(hash, count, 0, name)
    }

    /// The stripes that may have an existing name, in the order in which clients look there.
    pub fn stripes_of(&self, name: &[u8]) -> Vec<Fid> {
        match (self.old_stripe(name), self.stripe_for_new(name)) {
            (Some(old), Some(new)) if old == new => vec![new],
            (Some(old), Some(new)) => vec![old, new],
            // A lost stripe has no FID.
            _ => self
                .stripes
                .iter()
                .copied()
                .filter(|stripe| !stripe.is_zero())
                .collect(),
        }
    }

    /// The stripe of a name from before a change.
    fn old_stripe(&self, name: &[u8]) -> Option<Fid> {
        let head = &self.head;
        let (hash, count, first) = match () {
            () if self.has(LMV_HASH_FLAG_SPLIT) => (head.lmv_migrate_hash, head.lmv_migrate_offset, 0),
            () if self.has(LMV_HASH_FLAG_MIGRATION) => {
                let first = head.lmv_migrate_offset;
                (
                    head.lmv_migrate_hash,
                    head.lmv_stripe_count.saturating_sub(first),
                    first,
                )
            }
            () => (head.lmv_hash_type, head.lmv_stripe_count, 0),
        };
        self.stripe(hash, count, first, name)
    }

    fn has(&self, flag: u32) -> bool {
        self.head.lmv_hash_type & flag != 0
    }

    /// The stripe of a name among `count` stripes from `first` on.
    fn stripe(&self, hash: u32, count: u32, first: u32, name: &[u8]) -> Option<Fid> {
        if self.has(LMV_HASH_FLAG_BAD_TYPE) {
            return None;
        }
        let index = stripe_of(hash, count, name)?;
        self.stripes.get((first + index) as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use crate::consts::lmv::{
        LMV_HASH_FLAG_BAD_TYPE, LMV_HASH_FLAG_MERGE, LMV_HASH_FLAG_MIGRATION, LMV_HASH_FLAG_SPLIT,
        LMV_HASH_TYPE_ALL_CHARS, LMV_HASH_TYPE_FNV_1A_64, LMV_MAGIC_V1,
    };
    use crate::striping::LmvLayout;
    use crate::{Fid, LmvMdsMdV1};

    fn layout(count: u32, hash: u32, migrate_hash: u32, migrate_offset: u32) -> LmvLayout {
        LmvLayout {
            head: LmvMdsMdV1 {
                lmv_magic: LMV_MAGIC_V1,
                lmv_stripe_count: count,
                lmv_hash_type: hash,
                lmv_migrate_hash: migrate_hash,
                lmv_migrate_offset: migrate_offset,
                ..LmvMdsMdV1::default()
            },
            stripes: (0..count).map(stripe).collect(),
        }
    }

    fn stripe(index: u32) -> Fid {
        Fid::new(0x400, index, 0)
    }

    const ALL: u32 = LMV_HASH_TYPE_ALL_CHARS;

    #[test]
    fn a_name_is_in_the_stripe_of_its_hash() {
        // The sum of the bytes of "a" is 97.
        let layout = layout(4, ALL, 0, 0);
        assert!(layout.is_usable());
        assert_eq!(layout.stripes_of(b"a"), [stripe(1)]);
        assert_eq!(layout.stripe_for_new(b"a"), Some(stripe(1)));
    }

    #[test]
    fn during_a_change_a_name_is_in_its_old_or_its_new_stripe() {
        // From 2 stripes to 4; from 4 to 2; from the stripes 2 to 4 to the stripes 0 and 1.
        let split = layout(4, ALL | LMV_HASH_FLAG_SPLIT, ALL, 2);
        assert_eq!(split.stripes_of(b"c"), [stripe(1), stripe(3)]);
        let merge = layout(4, ALL | LMV_HASH_FLAG_MERGE, ALL, 2);
        assert_eq!(merge.stripes_of(b"c"), [stripe(3), stripe(1)]);
        let migration = layout(5, ALL | LMV_HASH_FLAG_MIGRATION, ALL, 2);
        assert_eq!(migration.stripes_of(b"c"), [stripe(2), stripe(1)]);
        for layout in [&split, &merge, &migration] {
            assert!(layout.is_usable() && layout.is_changing());
            assert_eq!(
                layout.stripe_for_new(b"c"),
                layout.stripes_of(b"c").last().copied()
            );
        }
    }

    #[test]
    fn without_a_known_hash_a_name_is_in_any_stripe_and_none_is_created() {
        for hash in [0, 9, ALL | LMV_HASH_FLAG_BAD_TYPE] {
            let layout = layout(3, hash, 0, 0);
            assert_eq!(layout.stripes_of(b"a").len(), 3, "{hash:#x}");
            assert_eq!(layout.stripe_for_new(b"a"), None, "{hash:#x}");
        }
    }

    #[test]
    fn layouts_with_impossible_numbers_are_unusable() {
        let fnv = LMV_HASH_TYPE_FNV_1A_64;
        let mut short = layout(3, fnv, 0, 0);
        short.stripes.pop();
        let mut of_a_stripe = layout(3, fnv, 0, 0);
        of_a_stripe.head.lmv_magic = crate::LMV_MAGIC_STRIPE;
        let unusable = [
            short,
            of_a_stripe,
            layout(0, fnv, 0, 0),
            layout(2, fnv | LMV_HASH_FLAG_MIGRATION, fnv, 3),
            layout(2, fnv | LMV_HASH_FLAG_SPLIT, fnv, 0),
        ];
        for layout in unusable {
            assert!(!layout.is_usable(), "{layout:?}");
            // No combination makes an access out of bounds.
            let _ = (layout.stripes_of(b"x"), layout.stripe_for_new(b"x"));
        }
    }
}
