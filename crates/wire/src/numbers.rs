//! One type for each kind of number in the protocol, so that the compiler rejects a mix-up of two
//! kinds.
//!
//! Wire structures hold plain integers. Code that reads a structure wraps the integers; code that
//! writes one unwraps them by `.0`.

use std::fmt;

macro_rules! numbers {
    ($( $(#[$doc:meta])* $name:ident($inner:ty), )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    )* };
}

numbers! {
    /// The index of an OST in its file system, as in `l_ost_idx` of a layout.
    OstIndex(u32),
    /// The position of a stripe in its file's layout, from 0, as in `o_stripe_idx`.
    StripeIndex(u32),
    /// The number of a transaction of one target, as in `pb_transno`; 0 for none.
    Transno(u64),
    /// The number that a client chooses for a request: the match bits of the request's PUT. 0 for
    /// none.
    Xid(u64),
}

impl Transno {
    /// No transaction: the request changed nothing.
    pub const NONE: Transno = Transno(0);

    /// The number of the target's next transaction.
    pub fn next(self) -> Transno {
        Transno(self.0 + 1)
    }
}

impl Xid {
    /// No request.
    pub const NONE: Xid = Xid(0);
}

impl StripeIndex {
    /// The stripes of a layout with `count` stripes.
    pub fn all(count: usize) -> impl Iterator<Item = StripeIndex> {
        (0..count as u32).map(StripeIndex)
    }
}
