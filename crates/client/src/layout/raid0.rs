//! The arithmetic of RAID0 striping. Pure.

use std::ops::Range;
use wire::StripeIndex;

/// The pattern of a component with stripes: its bytes are spread over the objects in turn, one
/// stripe size after the other. Offsets in objects depend on offsets in the file, wherever the
/// component begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Raid0 {
    /// Stripe size in bytes; not 0.
    pub(super) stripe_size: u64,
    /// Number of objects; not 0.
    pub(super) count: u64,
}

impl Raid0 {
    fn full_stripe(self) -> u64 {
        self.stripe_size * self.count
    }

    /// The stripe that has a byte of the file, and the byte's offset in that object.
    pub(super) fn locate(self, offset: u64) -> (StripeIndex, u64) {
        let size = self.stripe_size;
        let in_full_stripe = offset % self.full_stripe();
        (
            StripeIndex((in_full_stripe / size) as u32),
            offset / self.full_stripe() * size + in_full_stripe % size,
        )
    }

    /// The offset in the file of a byte of an object; `u64::MAX` if it exceeds a `u64`.
    pub(super) fn file_offset(self, stripe: StripeIndex, object_offset: u64) -> u64 {
        let size = self.stripe_size;
        (object_offset / size)
            .checked_mul(self.full_stripe())
            .and_then(|start| start.checked_add(u64::from(stripe.0) * size + object_offset % size))
            .unwrap_or(u64::MAX)
    }

    /// The size of an object if the file has `file_size` bytes, all of them with this pattern.
    pub(super) fn object_size(self, stripe: StripeIndex, file_size: u64) -> u64 {
        let size = self.stripe_size;
        let start = u64::from(stripe.0) * size;
        let in_full_stripe = file_size % self.full_stripe();
        file_size / self.full_stripe() * size + in_full_stripe.saturating_sub(start).min(size)
    }

    /// The least file size that an object of `object_size` bytes implies.
    pub(super) fn file_size(self, stripe: StripeIndex, object_size: u64) -> u64 {
        match object_size.checked_sub(1) {
            Some(last) => self.file_offset(stripe, last).saturating_add(1),
            None => 0,
        }
    }

    /// The stripes that have bytes of a range, which is not empty, in ascending order.
    pub(super) fn stripes_in(self, range: &Range<u64>) -> impl Iterator<Item = StripeIndex> + use<> {
        let (first, last) = (range.start / self.stripe_size, (range.end - 1) / self.stripe_size);
        let (from, to) = (first % self.count, last % self.count + 1);
        let (low, high) = match last - first {
            pieces if pieces + 1 >= self.count => (0..0, 0..self.count),
            _ if from < to => (0..0, from..to),
            _ => (0..to, from..self.count),
        };
        low.chain(high).map(|stripe| StripeIndex(stripe as u32))
    }
}
