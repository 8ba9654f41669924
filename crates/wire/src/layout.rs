//! Declarations of wire structures: each is declared once, with plain fields.
//!
//! `wire_structs!` generates the Rust struct, its size, a table of field offsets, a reader and a
//! writer. There is no implicit padding: gaps are fields too. `tests/it/facts.rs` compares the
//! tables with Lustre's sizes and offsets.

use crate::codec::{Reader, Result, WireError, Writer};
use bytes::Bytes;

/// One field of a structure: its name, offset, size and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Lustre's name.
    pub name: &'static str,
    /// Offset in the structure, in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
    /// The type of the field.
    pub shape: Shape,
}

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A little-endian number.
    Number,
    /// Text up to a NUL.
    Text,
    /// Items of one shape, with the size of an item in bytes.
    Array(&'static Shape, usize),
    /// A structure.
    Struct(&'static StructLayout),
}

/// The layout of a structure on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructLayout {
    /// Lustre's name, such as `mdt_body`.
    pub name: &'static str,
    /// Size in bytes, without a flexible array at the end.
    pub size: usize,
    /// Every field, in order.
    pub fields: &'static [Field],
}

/// A type that a field can have: an integer, text of fixed length, an array, or a structure.
pub trait WireField: Sized + Clone {
    /// Size in bytes.
    const BYTES: usize;
    /// The value with all bytes zero.
    const ZERO: Self;
    /// The shape of the field.
    const SHAPE: Shape;
    /// Reads a value.
    ///
    /// # Errors
    ///
    /// Too few bytes are left.
    fn read_field(r: &mut Reader<'_>) -> Result<Self>;
    /// Appends the value.
    fn write_field(&self, w: &mut Writer);
}

/// A structure of the protocol.
pub trait WireStruct: Sized + Clone + 'static {
    /// Lustre's name.
    const NAME: &'static str;
    /// Size in bytes, without a flexible array at the end.
    const SIZE: usize;
    /// Name, size and fields.
    const LAYOUT: StructLayout;
    /// Reads the structure.
    ///
    /// # Errors
    ///
    /// Too few bytes are left.
    fn read(r: &mut Reader<'_>) -> Result<Self>;
    /// Appends the structure.
    fn write(&self, w: &mut Writer);

    /// The structure in wire format.
    fn to_bytes(&self) -> Bytes {
        let mut w = Writer::with_capacity(Self::SIZE);
        self.write(&mut w);
        w.finish()
    }

    /// Reads the structure at the start of `bytes`, which may be longer.
    ///
    /// # Errors
    ///
    /// `bytes` is shorter than the structure.
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

/// Builds the table of fields from the name, size in bytes and shape of each; the offset of a field
/// is the sum of the sizes before it.
pub(crate) const fn with_offsets<const N: usize>(fields: [(&'static str, usize, Shape); N]) -> [Field; N] {
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
            name: fields[i].0,
            offset,
            size: fields[i].1,
            shape: fields[i].2,
        };
        offset += fields[i].1;
        i += 1;
    }
    out
}

/// Declares wire structures, and lists their layouts in the module's `STRUCTS`.
///
/// `pub struct LuExtent("lu_extent", 16) { e_start: u64, e_end: u64 }` generates the struct with
/// [`WireStruct`] and [`WireField`]; the compiler checks that the fields add up to the declared
/// size. With the third argument `own_debug`, the macro does not implement `Debug`: the structure
/// has its own implementation.
macro_rules! wire_structs {
    ($( $(#[$meta:meta])* pub struct $name:ident ($lustre:literal, $size:literal $(, $debug:ident)?) { $( $field:ident : $ty:ty ),* $(,)? } )*) => {
        /// The layout of every structure of this module.
        pub const STRUCTS: &[$crate::layout::StructLayout] = &[ $( <$name as $crate::layout::WireStruct>::LAYOUT ),* ];
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
                const LAYOUT: $crate::layout::StructLayout = $crate::layout::StructLayout {
                    name: $lustre,
                    size: $size,
                    fields: &$crate::layout::with_offsets([ $( (stringify!($field), <$ty as $crate::layout::WireField>::BYTES, <$ty as $crate::layout::WireField>::SHAPE) ),* ]),
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

/// Implements `Debug`, which shows only the nonzero fields, because most fields are zero. A
/// structure marked `own_debug` has its own implementation.
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

/// Declares constants under Lustre's names, and lists them in the module's `CONSTANTS`.
macro_rules! constants {
    ($( $name:ident : $ty:ty = $value:expr ),* $(,)?) => {
        /// Name and value of every constant of this module.
        pub(crate) const CONSTANTS: &[(&str, u64)] = &[ $( (stringify!($name), $name as u64) ),* ];
        $( #[doc = concat!("`", stringify!($name), "`")] pub const $name: $ty = $value; )*
    };
}
pub(crate) use constants;
