"""The messages of the kubelet's device plugin API v1beta1, built at run time: no generated code, no .proto file.

Source: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto; only the fields that we use.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "v1beta1"
_Field = descriptor_pb2.FieldDescriptorProto
_TEXT, _BOOL, _MESSAGE = _Field.TYPE_STRING, _Field.TYPE_BOOL, _Field.TYPE_MESSAGE

_FieldSpec = tuple[int, str, "_Field.Type.ValueType | str", bool]
_MESSAGES: dict[str, tuple[_FieldSpec, ...]] = {
    "Empty": (),
    "DevicePluginOptions": (),
    "RegisterRequest": (
        (1, "version", _TEXT, False),
        (2, "endpoint", _TEXT, False),
        (3, "resource_name", _TEXT, False),
    ),
    "Device": ((1, "ID", _TEXT, False), (2, "health", _TEXT, False)),
    "ListAndWatchResponse": ((1, "devices", "Device", True),),
    "ContainerAllocateRequest": ((1, "devices_ids", _TEXT, True),),
    "AllocateRequest": ((1, "container_requests", "ContainerAllocateRequest", True),),
    "Mount": ((1, "container_path", _TEXT, False), (2, "host_path", _TEXT, False), (3, "read_only", _BOOL, False)),
    "ContainerAllocateResponse": (
        (1, "envs", "ContainerAllocateResponse.EnvsEntry", True),
        (2, "mounts", "Mount", True),
    ),
    "AllocateResponse": ((1, "container_responses", "ContainerAllocateResponse", True),),
}
"""name: (field number, field name, type or message name, repeated) for each field."""


def message(name: str) -> Any:
    """The message class of that name."""
    return _CLASSES[name]


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="device_plugin.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        for number, field_name, kind, repeated in fields:
            field = described.field.add(
                name=field_name, number=number, label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            )
            if isinstance(kind, str):
                field.type, field.type_name = _MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = kind
        if name == "ContainerAllocateResponse":
            _add_text_map(described, "EnvsEntry")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


def _add_text_map(described: descriptor_pb2.DescriptorProto, name: str) -> None:
    """The entry type of a map<string, string>, as protoc makes it."""
    entry = described.nested_type.add(name=name)
    entry.options.map_entry = True
    for number, field_name in ((1, "key"), (2, "value")):
        entry.field.add(name=field_name, number=number, label=_Field.LABEL_OPTIONAL, type=_TEXT)


_CLASSES = _build()
