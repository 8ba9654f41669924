//! How a structure of the protocol is declared: once, with plain fields.
//!
//! `wire_structs!` turns the declaration into a Rust struct, its size, a table of its fields' offsets, a reader and a
//! writer. Nothing is padded silently: what lies between two fields is a field too. The tables are compared with the
//! protocol's facts by `tests/it/facts.rs`.

use crate::codec::{Reader, Result, WireError, Writer};
use bytes::Bytes;

/// One field of a structure: its name on the wire, where it begins, how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Lustre's name.
    pub name: &'static str,
    /// Bytes from the structure's beginning.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// What its bytes are.
    pub shape: Shape,
}

/// What a field's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A little-endian number.
    Number,
    /// Text up to a NUL.
    Text,
    /// Items of one shape, each of so many bytes.
    Array(&'static Shape, usize),
    /// A structure.
    Struct(&'static Layout),
}

/// A structure as it lies on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Lustre's name, `mdt_body`.
    pub name: &'static str,
    /// Bytes, without a flexible array at its end.
    pub size: usize,
    /// Every field, in order.
    pub fields: &'static [Field],
}

/// Anything that can be a field: an integer, text of fixed length, an array, a structure.
pub trait WireField: Sized + Clone {
    /// Bytes.
    const BYTES: usize;
    /// All zeros.
    const ZERO: Self;
    /// What the bytes are.
    const SHAPE: Shape;
    /// Reads one from the front.
    fn read_field(r: &mut Reader<'_>) -> Result<Self>;
    /// Appends one.
    fn write_field(&self, w: &mut Writer);
}

/// A structure of the protocol.
pub trait WireStruct: Sized + Clone + 'static {
    /// Lustre's name.
    const NAME: &'static str;
    /// Bytes, without a flexible array at its end.
    const SIZE: usize;
    /// Name, size, fields.
    const LAYOUT: Layout;
    /// Reads one from the front.
    fn read(r: &mut Reader<'_>) -> Result<Self>;
    /// Appends one.
    fn write(&self, w: &mut Writer);

    /// The structure's bytes.
    fn to_bytes(&self) -> Bytes {
        let mut w = Writer::with_capacity(Self::SIZE);
        self.write(&mut w);
        w.finish()
    }

    /// Reads one from the front of `bytes`, which may be longer.
    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < Self::SIZE {
            return Err(WireError::Short {
                what: Self::NAME,
                expected: Self::SIZE,
                found: bytes.len(),
            });
        }
        Self::read(&mut Reader::new(Self::NAME, bytes))
    }
}

macro_rules! int_field {
    ($($t:ty),*) => {$(
        impl WireField for $t {
            const BYTES: usize = size_of::<$t>();
            const ZERO: Self = 0;
            const SHAPE: Shape = Shape::Number;
            fn read_field(r: &mut Reader<'_>) -> Result<Self> {
                Ok(<$t>::from_le_bytes(r.array()?))
            }
            fn write_field(&self, w: &mut Writer) {
                w.put(&self.to_le_bytes());
            }
        }
    )*};
}
int_field!(u8, u16, u32, u64, i32, i64);

impl<T: WireField + Copy, const N: usize> WireField for [T; N] {
    const BYTES: usize = T::BYTES * N;
    const ZERO: Self = [T::ZERO; N];
    const SHAPE: Shape = Shape::Array(&T::SHAPE, T::BYTES);
    fn read_field(r: &mut Reader<'_>) -> Result<Self> {
        let mut out = Self::ZERO;
        for item in &mut out {
            *item = T::read_field(r)?;
        }
        Ok(out)
    }
    fn write_field(&self, w: &mut Writer) {
        for item in self {
            item.write_field(w);
        }
    }
}

/// Gives each (name, size, shape) the offset that it has after all before it.
pub(crate) const fn place<const N: usize>(sizes: [(&'static str, usize, Shape); N]) -> [Field; N] {
    let mut out = [Field {
        name: "",
        offset: 0,
        size: 0,
        shape: Shape::Number,
    }; N];
    let mut offset = 0;
    let mut i = 0;
    while i < N {
        out[i] = Field {
            name: sizes[i].0,
            offset,
            size: sizes[i].1,
            shape: sizes[i].2,
        };
        offset += sizes[i].1;
        i += 1;
    }
    out
}

/// Declares structures of the protocol, and lists their layouts in the module's `STRUCTS`.
///
/// `pub struct LuExtent("lu_extent", 16) { e_start: u64, e_end: u64 }` gives the struct, its [`WireStruct`] and
/// [`WireField`]; that the fields add up to the declared size is checked when it is compiled. A third word in the
/// parentheses, `own_debug`, leaves `Debug` to be written by hand.
macro_rules! wire_structs {
    ($( $(#[$meta:meta])* pub struct $name:ident ($lustre:literal, $size:literal $(, $debug:ident)?) { $( $field:ident : $ty:ty ),* $(,)? } )*) => {
        /// The layout of every structure of this module.
        pub const STRUCTS: &[$crate::layout::Layout] = &[ $( <$name as $crate::layout::WireStruct>::LAYOUT ),* ];
        $(
            #[doc = concat!("`", $lustre, "`, ", $size, " bytes.")]
            $(#[$meta])*
            #[derive(Clone, PartialEq, Eq)]
            pub struct $name {
                $( #[doc = concat!("`", stringify!($field), "`")] pub $field: $ty, )*
            }

            const _: () = assert!(<$name as $crate::layout::WireStruct>::SIZE == $size, $lustre);

            $crate::layout::debug_of_fields! { [$( $debug )?] $name { $( $field : $ty ),* } }

            impl Default for $name {
                fn default() -> Self {
                    <Self as $crate::layout::WireField>::ZERO
                }
            }

            impl $crate::layout::WireField for $name {
                const BYTES: usize = 0 $( + <$ty as $crate::layout::WireField>::BYTES )*;
                const ZERO: Self = $name { $( $field: <$ty as $crate::layout::WireField>::ZERO, )* };
                const SHAPE: $crate::layout::Shape = $crate::layout::Shape::Struct(&<$name as $crate::layout::WireStruct>::LAYOUT);
                fn read_field(r: &mut $crate::codec::Reader<'_>) -> $crate::codec::Result<Self> {
                    Ok($name { $( $field: <$ty as $crate::layout::WireField>::read_field(r)?, )* })
                }
                fn write_field(&self, w: &mut $crate::codec::Writer) {
                    $( $crate::layout::WireField::write_field(&self.$field, w); )*
                }
            }

            impl $crate::layout::WireStruct for $name {
                const NAME: &'static str = $lustre;
                const SIZE: usize = <Self as $crate::layout::WireField>::BYTES;
                const LAYOUT: $crate::layout::Layout = $crate::layout::Layout {
                    name: $lustre,
                    size: $size,
                    fields: &$crate::layout::place([ $( (stringify!($field), <$ty as $crate::layout::WireField>::BYTES, <$ty as $crate::layout::WireField>::SHAPE) ),* ]),
                };
                fn read(r: &mut $crate::codec::Reader<'_>) -> $crate::codec::Result<Self> {
                    <Self as $crate::layout::WireField>::read_field(r)
                }
                fn write(&self, w: &mut $crate::codec::Writer) {
                    $crate::layout::WireField::write_field(self, w);
                }
            }
        )*
    };
}
pub(crate) use wire_structs;

/// A structure's `Debug`: its fields, without those that are zero, since most of a message's are. A structure that is
/// marked `own_debug` brings its own.
macro_rules! debug_of_fields {
    ([own_debug] $name:ident { $( $field:ident : $ty:ty ),* }) => {};
    ([] $name:ident { $( $field:ident : $ty:ty ),* }) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut out = f.debug_struct(stringify!($name));
                $( if self.$field != <$ty as $crate::layout::WireField>::ZERO {
                    out.field(stringify!($field), &self.$field);
                } )*
                out.finish()
            }
        }
    };
}
pub(crate) use debug_of_fields;

/// Declares constants by Lustre's names, and lists them in the module's `CONSTANTS`.
macro_rules! constants {
    ($( $name:ident : $ty:ty = $value:expr ),* $(,)?) => {
        /// Name and value of every constant of this module.
        pub(crate) const CONSTANTS: &[(&str, u64)] = &[ $( (stringify!($name), $name as u64) ),* ];
        $( #[doc = concat!("`", stringify!($name), "`")] pub const $name: $ty = $value; )*
    };
}
pub(crate) use constants;
