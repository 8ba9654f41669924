//! Layouts of files on OSTs.

use crate::mount::Mount;
use bytes::Bytes;
use posix::attrs;
use wire::striping::{LovLayout, PlainLayout};
use wire::{Errno, LOV_MAX_STRIPE_COUNT, LOV_MIN_STRIPE_SIZE};

/// In a layout without objects, this stripe count means all OSTs, and this first OST means any OST.
const ANY: u16 = u16::MAX;

/// `struct nacre_stripe` of `nacre.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Stripe {
    size: u32,
    count: i32,
    first_ost: i32,
}

impl Stripe {
    /// The layout in the form of a request (`lov_user_md`). `EINVAL`: invalid size, count or OST.
    pub(crate) fn layout(&self) -> Result<Bytes, Errno> {
        let count = match self.count {
            -1 => ANY,
            n if (0..=LOV_MAX_STRIPE_COUNT as i32).contains(&n) => n as u16,
            _ => return Err(Errno::EINVAL),
        };
        let first = match self.first_ost {
            -1 => None,
            n if (0..i32::from(ANY)).contains(&n) => Some(n as u16),
            _ => return Err(Errno::EINVAL),
        };
        if !self.size.is_multiple_of(LOV_MIN_STRIPE_SIZE) {
            return Err(Errno::EINVAL);
        }
        Ok(PlainLayout::request(self.size, count, first).build())
    }

    /// The values of an existing layout, or of a directory's default.
    fn of(layout: &PlainLayout) -> Stripe {
        let signed = |n: u16| if n == ANY { -1 } else { n.into() };
        Stripe {
            size: layout.stripe_size,
            count: signed(layout.stripe_count),
            first_ost: match layout.objects.first() {
                Some(object) => object.l_ost_idx as i32,
                // In a layout without objects, `layout_gen` has the first OST.
                None => signed(layout.layout_gen),
            },
        }
    }
}

/// Sets the default layout of a directory, or the layout of a file that has no layout.
pub(crate) async fn set(mount: &Mount, path: &[u8], stripe: &Stripe) -> Result<(), Errno> {
    let layout = stripe.layout()?;
    attrs::with_path(mount, path, true, |fid, _| {
        mount.client.setstripe(&mount.cred, fid, layout.clone())
    })
    .await
}

/// The layout of a file, or the default layout of a directory.
pub(crate) async fn get(mount: &Mount, path: &[u8]) -> Result<Stripe, Errno> {
    let layout = attrs::with_path(mount, path, true, |fid, _| {
        mount.client.getstripe(&mount.cred, fid)
    });
    let layout = layout.await?;
    match LovLayout::parse(&layout)? {
        LovLayout::Plain(plain) => Ok(Stripe::of(&plain)),
        _ => Err(Errno::EOPNOTSUPP),
    }
}
