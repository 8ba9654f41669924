//! Default layouts of directories over MDTs (`trusted.dmv`, `lmv_user_md`). The MDT keeps them and
//! lets new directories inherit them; clients choose the MDT of a new directory by them.

use bytes::Bytes;
use wire::{
    Errno, LMV_INHERIT_END, LMV_INHERIT_MAX, LMV_INHERIT_NONE, LMV_INHERIT_RR_MAX, LMV_INHERIT_RR_NONE,
    LMV_INHERIT_RR_UNLIMITED, LMV_INHERIT_UNLIMITED, LMV_OFFSET_DEFAULT, LMV_USER_MAGIC, LmvUserMdV1,
    WireStruct,
};

/// Whether a client's layout for a directory is one over MDTs, not one for new files.
pub(crate) fn is_default_layout(ea: &[u8]) -> bool {
    ea.first_chunk() == Some(&LMV_USER_MAGIC.to_le_bytes())
}

/// The default layout that a client sets; `None` if it deletes the present one.
///
/// # Errors
///
/// `EINVAL`: malformed, or an invalid number of levels; `EOPNOTSUPP`: new directories would have
/// several stripes.
pub(crate) fn parse(ea: &[u8]) -> Result<Option<LmvUserMdV1>, Errno> {
    let layout = LmvUserMdV1::from_bytes(ea.get(..LmvUserMdV1::SIZE).ok_or(Errno::EINVAL)?)
        .map_err(|_| Errno::EINVAL)?;
    let (levels, levels_in_turn) = (
        u32::from(layout.lum_max_inherit),
        u32::from(layout.lum_max_inherit_rr),
    );
    let is_valid = layout.lum_magic == LMV_USER_MAGIC
        && (levels <= LMV_INHERIT_MAX || levels == LMV_INHERIT_NONE)
        && (levels_in_turn <= LMV_INHERIT_RR_MAX || levels_in_turn == LMV_INHERIT_RR_UNLIMITED);
    match layout.lum_stripe_count {
        _ if !is_valid => Err(Errno::EINVAL),
        0 if layout.lum_stripe_offset == LMV_OFFSET_DEFAULT && levels == LMV_INHERIT_NONE => Ok(None),
        0 | 1 => Ok(Some(layout)),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// The default layout that a new directory inherits from its parent's; empty: none. The numbers of
/// levels fall by one, except those that mean all or no levels.
pub(crate) fn inherited(default: &Bytes) -> Bytes {
    let Ok(mut layout) = LmvUserMdV1::from_bytes(default) else {
        return Bytes::new();
    };
    let levels = u32::from(layout.lum_max_inherit);
    if [LMV_INHERIT_NONE, LMV_INHERIT_END].contains(&levels) {
        return Bytes::new();
    }
    if levels != LMV_INHERIT_UNLIMITED {
        layout.lum_max_inherit -= 1;
    }
    let levels_in_turn = u32::from(layout.lum_max_inherit_rr);
    if ![LMV_INHERIT_RR_NONE, LMV_INHERIT_RR_UNLIMITED].contains(&levels_in_turn) {
        layout.lum_max_inherit_rr -= 1;
    }
    layout.to_bytes()
}

#[cfg(test)]
mod tests {
    use super::{inherited, parse};
    use bytes::Bytes;
    use wire::{Errno, LMV_OFFSET_DEFAULT, LMV_USER_MAGIC, LmvUserMdV1, WireStruct};

    fn layout(levels: u8, levels_in_turn: u8) -> LmvUserMdV1 {
        LmvUserMdV1 {
            lum_magic: LMV_USER_MAGIC,
            lum_stripe_count: 1,
            lum_stripe_offset: LMV_OFFSET_DEFAULT,
            lum_max_inherit: levels,
            lum_max_inherit_rr: levels_in_turn,
            ..LmvUserMdV1::default()
        }
    }

    #[test]
    fn inherited_levels_fall_by_one() {
        let next = |levels, levels_in_turn| {
            let bytes = inherited(&layout(levels, levels_in_turn).to_bytes());
            let found = LmvUserMdV1::from_bytes(&bytes).ok();
            found.map(|found| (found.lum_max_inherit, found.lum_max_inherit_rr))
        };
        assert_eq!(next(3, 2), Some((2, 1)));
        assert_eq!(next(2, 1), Some((1, 0)));
        assert_eq!(next(1, 1), None, "1 is the last level");
        assert_eq!(next(0xff, 0xff), None, "no level");
        assert_eq!(next(0, 0xff), Some((0, 0xff)), "all levels");
        assert_eq!(next(250, 0), Some((249, 0)));
        assert_eq!(inherited(&Bytes::new()), Bytes::new());
    }

    #[test]
    fn invalid_layouts_are_refused() {
        let request = |edit: &dyn Fn(&mut LmvUserMdV1)| {
            let mut request = layout(3, 0);
            edit(&mut request);
            parse(&request.to_bytes()).map(|layout| layout.is_some())
        };
        assert_eq!(request(&|_| ()), Ok(true));
        assert_eq!(request(&|l| l.lum_stripe_count = 0), Ok(true));
        assert_eq!(
            request(&|l| (l.lum_stripe_count, l.lum_max_inherit) = (0, 0xff)),
            Ok(false)
        );
        assert_eq!(request(&|l| l.lum_stripe_count = 2), Err(Errno::EOPNOTSUPP));
        assert_eq!(request(&|l| l.lum_stripe_count = -1), Err(Errno::EOPNOTSUPP));
        assert_eq!(request(&|l| l.lum_max_inherit = 251), Err(Errno::EINVAL));
        assert_eq!(request(&|l| l.lum_max_inherit_rr = 254), Err(Errno::EINVAL));
        assert_eq!(request(&|l| l.lum_magic += 1), Err(Errno::EINVAL));
        assert_eq!(parse(&layout(0, 0).to_bytes()[..47]), Err(Errno::EINVAL));
    }
}
