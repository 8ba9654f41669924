//! Numbers of the protocol as types, so that no function takes one for the other.
//!
//! Wire structures hold plain integers. The code that reads a structure wraps them, and the code that writes one takes
//! them out by `.0`.

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
}
