//! Layouts of files: what a client asks for (`lov_user_md`), what a directory gives its new files, and what a file has
//! (`lov_mds_md`), always little-endian, in messages as in attributes.
//!
//! Pure: which OSTs have room is [`crate::lod`]'s business. Implemented is RAID0 over 1 to n OSTs, with or without a
//! pool's name, or over the OSTs that the user lists; composite, data-on-MDT and foreign layouts are refused.

use bytes::Bytes;
use wire::{
    Errno, Fid, LOV_MAX_STRIPE_COUNT, LOV_MIN_STRIPE_SIZE, LOV_PATTERN_DEFAULT, LOV_PATTERN_NONE,
    LOV_PATTERN_RAID0, LOV_USER_MAGIC_SPECIFIC, LOV_USER_MAGIC_V1, LOV_USER_MAGIC_V3, LovMdsMdV3,
    LovOstDataV1, OstId, OstIndex, Text, WireStruct,
    striping::{LovLayout, PlainLayout},
};

/// "No choice": the filesystem's default, or any OST.
const ANY: u16 = u16::MAX;
/// "Every OST".
const ALL: u16 = u16::MAX;
/// The filesystem's stripe size, unless the root directory says otherwise.
pub const DEFAULT_STRIPE_SIZE: u32 = 4 << 20;
/// The filesystem's number of stripes, unless the root directory says otherwise.
pub const DEFAULT_STRIPE_COUNT: u16 = 1;

/// What is wanted of a new file's layout; zero or `None` where there is no choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes in one stripe before the next begins.
    pub stripe_size: u32,
    /// How many stripes; `u16::MAX`: one on every OST.
    pub stripe_count: u16,
    /// The OST of the first stripe.
    pub first: Option<OstIndex>,
    /// The pool's name.
    pub pool: Text<16>,
    /// The OSTs, in order, when the user lists them.
    pub osts: Vec<OstIndex>,
}

/// One object of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// The OST.
    pub ost: OstIndex,
    /// The object.
    pub fid: Fid,
}

impl Wanted {
    /// Reads a `lov_user_md`; `None` when it says "no layout of my own" (`lfs setstripe -d`).
    pub fn parse(ea: &[u8]) -> Result<Option<Wanted>, Errno> {
        let magic = ea.first_chunk::<4>().map_or(0, |m| u32::from_le_bytes(*m));
        if ![LOV_USER_MAGIC_V1, LOV_USER_MAGIC_V3, LOV_USER_MAGIC_SPECIFIC].contains(&magic) {
            return Err(if LovLayout::is_layout(ea) {
                Errno::EOPNOTSUPP
            } else {
                Errno::EINVAL
            });
        }
        let lum = PlainLayout::parse(ea).map_err(|_| Errno::EINVAL)?;
        if ![LOV_PATTERN_NONE, LOV_PATTERN_RAID0, LOV_PATTERN_DEFAULT].contains(&lum.pattern) {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut wanted = Wanted {
            stripe_size: lum.stripe_size,
            stripe_count: lum.stripe_count,
            first: (lum.layout_gen != ANY).then_some(OstIndex(lum.layout_gen.into())),
            pool: lum.pool,
            osts: Vec::new(),
        };
        if magic == LOV_USER_MAGIC_SPECIFIC {
            wanted.osts = listed_osts(&lum)?;
        }
        if !wanted.stripe_size.is_multiple_of(LOV_MIN_STRIPE_SIZE) {
            return Err(Errno::EINVAL);
        }
        if wanted.stripe_count != ALL && u32::from(wanted.stripe_count) > LOV_MAX_STRIPE_COUNT {
            return Err(Errno::EINVAL);
        }
        let nothing = wanted == Wanted::default();
        Ok((!nothing).then_some(wanted))
    }

    /// As a directory's default: the `lov_user_md` that it is kept and shown as.
    pub fn to_default(&self) -> Bytes {
        PlainLayout {
            magic: match (self.osts.is_empty(), self.pool.is_empty()) {
                (false, _) => LOV_USER_MAGIC_SPECIFIC,
                (true, false) => LOV_USER_MAGIC_V3,
                (true, true) => LOV_USER_MAGIC_V1,
            },
            pattern: LOV_PATTERN_RAID0,
            oi: OstId::default(),
            stripe_size: self.stripe_size,
            stripe_count: self.stripe_count,
            layout_gen: self.first.map_or(ANY, |first| first.0 as u16),
            pool: self.pool,
            objects: self
                .osts
                .iter()
                .map(|ost| record(OstId::default(), *ost))
                .collect(),
        }
        .build()
    }

    /// These wishes, and where there is none, those of `other`.
    pub fn or(self, other: &Wanted) -> Wanted {
        Wanted {
            stripe_size: if self.stripe_size == 0 {
                other.stripe_size
            } else {
                self.stripe_size
            },
            stripe_count: if self.stripe_count == 0 {
                other.stripe_count
            } else {
                self.stripe_count
            },
            first: self.first.or(other.first),
            pool: if self.pool.is_empty() {
                other.pool
            } else {
                self.pool
            },
            osts: if self.osts.is_empty() && self.stripe_count == 0 {
                other.osts.clone()
            } else {
                self.osts
            },
        }
    }

    /// How many stripes there shall be of `osts` OSTs.
    pub fn count_of(&self, osts: usize) -> usize {
        match self.stripe_count {
            _ if !self.osts.is_empty() => self.osts.len(),
            0 => usize::from(DEFAULT_STRIPE_COUNT).min(osts),
            ALL => osts.min(LOV_MAX_STRIPE_COUNT as usize),
            n => usize::from(n).min(osts),
        }
    }
}

fn listed_osts(lum: &PlainLayout) -> Result<Vec<OstIndex>, Errno> {
    let osts: Vec<OstIndex> = lum.objects.iter().map(|o| OstIndex(o.l_ost_idx)).collect();
    let repeated = osts.iter().enumerate().any(|(i, ost)| osts[..i].contains(ost));
    if repeated || osts.len() != usize::from(lum.stripe_count) {
        return Err(Errno::EINVAL);
    }
    Ok(osts)
}

fn record(oi: OstId, ost: OstIndex) -> LovOstDataV1 {
    LovOstDataV1 {
        l_ost_oi: oi,
        l_ost_gen: 0,
        l_ost_idx: ost.0,
    }
}

/// A file's layout: `lov_mds_md` of these objects.
pub fn build(file: Fid, stripe_size: u32, pool: Text<16>, objects: &[Object]) -> Bytes {
    let size = if stripe_size == 0 {
        DEFAULT_STRIPE_SIZE
    } else {
        stripe_size
    };
    let records = objects.iter().map(|o| record(o.fid.into(), o.ost)).collect();
    let mut layout = PlainLayout::raid0(file, size, records);
    if !pool.is_empty() {
        layout.magic = LOV_USER_MAGIC_V3;
        layout.pool = pool;
    }
    layout.build()
}

/// The objects of a file's layout.
pub fn objects(ea: &[u8]) -> Result<Vec<Object>, Errno> {
    if ea.is_empty() {
        return Ok(Vec::new());
    }
    let layout = PlainLayout::parse(ea)?;
    Ok(layout
        .objects
        .iter()
        .map(|o| Object {
            ost: OstIndex(o.l_ost_idx),
            fid: o.l_ost_oi.fid(),
        })
        .collect())
}

/// The object that has the last byte of a file of `size` bytes, and the size of that object. `None`: there is no such byte, or
/// there are no objects.
pub fn last_object(ea: &[u8], size: u64) -> Result<Option<(Object, u64)>, Errno> {
    if ea.is_empty() || size == 0 {
        return Ok(None);
    }
    let layout = PlainLayout::parse(ea)?;
    let (stripe_size, count) = (u64::from(layout.stripe_size), layout.objects.len() as u64);
    if stripe_size == 0 || count == 0 {
        return Err(Errno::EINVAL);
    }
    let last = size - 1;
    let (row, in_row) = (last / (stripe_size * count), last % (stripe_size * count));
    let record = &layout.objects[(in_row / stripe_size) as usize];
    let object = Object {
        ost: OstIndex(record.l_ost_idx),
        fid: record.l_ost_oi.fid(),
    };
    Ok(Some((object, row * stripe_size + in_row % stripe_size + 1)))
}

/// The bytes of a layout of this many objects at most: what a reply must have room for.
pub fn max_size(osts: usize) -> usize {
    LovMdsMdV3::SIZE + osts.max(1) * LovOstDataV1::SIZE
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Object, Wanted, build, last_object, objects};
    use wire::{Errno, Fid, OstIndex, Text};

    fn hex(s: &str) -> Vec<u8> {
        (0..s.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap())
            .collect()
    }

    #[test]
    fn a_layout_is_what_a_real_server_answers() {
        // From the capture d2_create_write_close: /dir1/file1, one stripe on OST 1.
        let captured = hex(concat!(
            "d00bd10b01000000020000000000000002040000020000000000400001000000",
            "010400c00200000002000000000000000000000001000000"
        ));
        let object = Object {
            ost: OstIndex(1),
            fid: Fid::new(0x2_c000_0401, 2, 0),
        };
        let file = Fid::new(0x2_0000_0402, 2, 0);
        assert_eq!(build(file, 4 << 20, Text::default(), &[object]), captured);
        assert_eq!(objects(&captured).unwrap(), [object]);
    }

    #[test]
    fn a_default_is_kept_as_it_was_asked_for() {
        // From the capture t8_setstripe_dir: lfs setstripe -c 2 -S 4M.
        let asked = hex("d00bd10b0100000000000000000000000000000000000000000040000200ffff");
        let wanted = Wanted::parse(&asked).unwrap().unwrap();
        assert_eq!(
            (wanted.stripe_count, wanted.stripe_size, wanted.first),
            (2, 4 << 20, None)
        );
        assert_eq!(wanted.to_default(), asked);
        assert_eq!(wanted.count_of(1), 1);
        assert_eq!(wanted.count_of(4), 2);
    }

    #[test]
    fn the_last_byte_decides_which_object_has_the_size() {
        const MIB: u64 = 1 << 20;
        let file = Fid::new(0x2_0000_0400, 1, 0);
        let objects = [1, 2, 3].map(|ost| Object {
            ost: OstIndex(ost),
            fid: Fid::new(0x1_0000_0000, ost, 0),
        });
        let ea = build(file, 1 << 20, Text::default(), &objects);
        let cases = [
            (1, Some((0, 1))),
            (MIB, Some((0, MIB))),
            (MIB + 1, Some((1, 1))),
            (3 * MIB, Some((2, MIB))),
            (3 * MIB + 1, Some((0, MIB + 1))),
            (8 * MIB, Some((1, 3 * MIB))),
            (0, None),
        ];
        for (size, expected) in cases {
            let expected = expected.map(|(i, size)| (objects[i], size));
            assert_eq!(last_object(&ea, size), Ok(expected), "{size}");
        }
        assert_eq!(last_object(&[], 1), Ok(None));
    }

    #[test]
    fn listed_osts_are_kept_in_order_and_may_not_repeat() {
        let wanted = Wanted {
            stripe_count: 2,
            osts: vec![OstIndex(3), OstIndex(1)],
            ..Wanted::default()
        };
        let ea = wanted.to_default();
        assert_eq!(Wanted::parse(&ea).unwrap().unwrap().osts, wanted.osts);
        let twice = Wanted {
            stripe_count: 2,
            osts: vec![OstIndex(1); 2],
            ..Wanted::default()
        }
        .to_default();
        assert_eq!(Wanted::parse(&twice), Err(Errno::EINVAL));
        assert_eq!(Wanted::parse(&ea[..ea.len() - 1]), Err(Errno::EINVAL));
    }

    #[test]
    fn what_is_not_implemented_is_refused() {
        let mut lum = Wanted {
            stripe_count: 1,
            ..Wanted::default()
        }
        .to_default()
        .to_vec();
        lum[4] = 0x40;
        assert_eq!(Wanted::parse(&lum), Err(Errno::EOPNOTSUPP));
        lum[4] = 1;
        lum[24] = 1;
        assert_eq!(Wanted::parse(&lum), Err(Errno::EINVAL));
        lum[2] = 0xd6;
        assert_eq!(Wanted::parse(&lum), Err(Errno::EOPNOTSUPP));
        assert_eq!(Wanted::parse(&[0; 8]), Err(Errno::EINVAL));
    }

    #[test]
    fn no_wishes_delete_a_default_and_gaps_are_filled_by_the_next() {
        let nothing = hex("d00bd10b0100000000000000000000000000000000000000000000000000ffff");
        assert_eq!(Wanted::parse(&nothing), Ok(None));
        let dir = Wanted {
            stripe_size: 1 << 20,
            stripe_count: 2,
            ..Wanted::default()
        };
        let file = Wanted {
            stripe_count: 3,
            ..Wanted::default()
        };
        assert_eq!(
            file.or(&dir),
            Wanted {
                stripe_size: 1 << 20,
                stripe_count: 3,
                ..Wanted::default()
            }
        );
    }
}
