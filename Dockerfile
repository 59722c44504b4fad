# `vitrail serve` as a container: docs/serve.md says how to run it. The model is mounted or copied to /model.
FROM python:3.12-slim AS build
# the build of torch: cpu, or a version of CUDA such as cu130, which is ten times as large
ARG TORCH_BACKEND=cpu
RUN python -m venv /opt/vitrail && pip install "uv>=0.8"
ENV VIRTUAL_ENV=/opt/vitrail UV_LINK_MODE=copy
COPY pyproject.toml README.md LICENSE /src/
COPY vitrail /src/vitrail
RUN --mount=type=cache,target=/root/.cache/uv uv pip install --torch-backend="$TORCH_BACKEND" "/src[serve,onnx]"

FROM python:3.12-slim
RUN useradd --system --uid 10001 --no-create-home vitrail
COPY --from=build /opt/vitrail /opt/vitrail
ENV PATH=/opt/vitrail/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=2)"]
# beyond its own machine the server wants a token: mount a file, or set VITRAIL_TOKEN
ENTRYPOINT ["vitrail", "serve", "/model", "--host", "0.0.0.0", "--port", "8000"]
